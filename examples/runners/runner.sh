#!/bin/sh
# A runner of plain curl: claims jobs of the task "shout", runs them and reports their outcomes.
#
#   TREADLE_SERVER=http://127.0.0.1:7373 sh runner.sh [JOBS]
#
# It claims one job at a time and waits for it up to 20 s. Each claim has a claim id of its own ("name#number"): a claim
# that is repeated under the same claim id after a lost answer returns the same job. A job that takes longer than its
# lease needs heartbeats; this one is quick. `sed` reads the answer, so jq is not needed: ids and versions have no quotes.
set -eu

server=${TREADLE_SERVER:-http://127.0.0.1:7373}
jobs=${1:-1000000}
name="curl-$$"

secrets() { # secrets BODY: token and body for curl on stdin, because process lists show its command line
    printf 'header = "Authorization: Bearer %s"\ndata = "%s"\n' "${TREADLE_TOKEN:-none}" \
        "$(printf '%s' "$1" | sed 's/[\\"]/\\&/g')"
}

call() { # call VERB BODY: one request; repeated, after a pause, until the server answers
    until secrets "$2" | curl --config - --silent --fail-with-body --max-time 60 \
        -H 'Content-Type: application/json' "$server/v1/work/$1"; do
        echo >&2 " ($1: trying again)"
        sleep 1
    done
}

number=0 done=0
while [ "$done" -lt "$jobs" ]; do
    number=$((number + 1))
    answer=$(call claim "{\"worker\": \"$name#$number\", \"tasks\": {\"shout\": [1, 30]}, \"wait\": 20, \"max_lost\": 3}")
    id=$(printf '%s' "$answer" | sed -n 's/^{"records":\[{"job":{"id":"\([^"]*\)".*/\1/p')
    [ -n "$id" ] || continue # nothing came within 20 s
    version=$(printf '%s' "$answer" | sed 's/.*"version":\([0-9]*\).*/\1/')
    # The payload is a JSON array of the arguments, as a JSON text: "[\"hello\"]".
    text=$(printf '%s' "$answer" | sed -n 's/.*"payload":"\[\\"\([^"\\]*\)\\"\]".*/\1/p')
    if [ -n "$text" ]; then
        loud=$(printf '%s' "$text" | tr '[:lower:]' '[:upper:]')
        report="{\"id\": \"$id\", \"version\": $version, \"succeed\": \"$loud\"}"
    else
        report="{\"id\": \"$id\", \"version\": $version, \"abort\": \"expected one plain text\"}"
    fi
    call settle "{\"outcomes\": [$report]}"
    echo
    done=$((done + 1))
done
