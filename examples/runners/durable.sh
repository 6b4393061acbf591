#!/bin/sh
# A durable function in plain shell: it charges, sleeps, waits for a signal, runs a child and sends. Kill it at any line,
# start it again, and it goes on behind the last step that is done.
#
#   TREADLE_SERVER=http://127.0.0.1:7373 SHOP=http://127.0.0.1:8080 sh durable.sh [RUNS]
#
# The server takes the steps: it answers what the history has, and stores what is new. Each step renews the lease. A step
# that takes longer than that needs heartbeats; these are quick. Texts here have no quotes, so `sed` reads the answers.
set -eu

server=${TREADLE_SERVER:-http://127.0.0.1:7373} shop=${SHOP:-http://127.0.0.1:8080} lease=${TREADLE_LEASE:-30}
runs=${1:-1000000} name="durable-$$"

secrets() { # secrets BODY: token and body for curl on stdin, because process lists show its command line
    printf 'header = "Authorization: Bearer %s"\ndata = "%s"\n' "${TREADLE_TOKEN:-none}" \
        "$(printf '%s' "$1" | sed 's/[\\"]/\\&/g')"
}

call() { # call VERB BODY: sets `answer`; repeats the request until the server has an answer
    while :; do
        answer=$(secrets "$2" | curl --config - --silent --max-time 60 --write-out '%{http_code}' \
            -H 'Content-Type: application/json' "$server/v1/work/$1") || true
        code=${answer#"${answer%???}"} answer=${answer%???}
        case $code in
        200) return ;;
        429 | 5?? | 000) sleep 1 ;;
        *) echo >&2 "$1: $answer" && exit 1 ;;
        esac
    done
}

part() { printf '%s' "$answer" | sed -n "s/.*$1.*/\1/p"; } # part PATTERN: its group in the answer

take() { # take NAME [FIELDS]: a step. Sets `status`, `result` and `failure`; ends the run if it is suspended or lost
    call steps "{\"id\": \"$id\", \"version\": $version, \"lease\": $lease, \"after\": \"$after\", \"name\": \"$1\"${2:+, $2}}"
    status=$(part '"status":"\([a-z]*\)"')
    result=$(part '"result":"\(.*\)"}')
    failure=$(part '"message":"\([^"]*\)"')
    case $status in
    done) after=$(part '"step":"\([^"]*\)"') ;;
    suspended | lost) exit 0 ;;
    esac
}

step() { # step NAME COMMAND...: runs the command once in the life of the job; its output is the result
    name=$1 && shift
    take "$name"
    [ "$status" != done ] || return 0
    output=$("$@") || exit 1
    take "$name" "\"result\": \"$output\""
}

post() { curl --silent --fail --request POST "$shop/$1"; } # an effect outside

ship() { # ship ORDER
    step charge post "charge/$1"
    receipt=$result
    take packing '"sleep": 0.1'
    take address '"wait": {"timeout": 3600}' # treadle jobs signal ID address '"Rome"'
    if [ -z "$failure" ]; then
        take label "\"call\": {\"id\": \"\", \"task\": \"label\", \"payload\": \"[\\\"$1/$result\\\"]\"}"
        step send post "send/$result"
    else
        step refund post "refund/$receipt"
    fi
}

label() { result=$(post "label/$1") || exit 1; } # not durable: it runs again as a whole

number=0
while [ "$number" -lt "$runs" ]; do
    number=$((number + 1))
    tasks="{\"ship\": [1, $lease], \"label\": [1, $lease]}"
    call claim "{\"worker\": \"$name#$number\", \"tasks\": $tasks, \"lease\": $lease, \"wait\": 20, \"max_lost\": 3}"
    id=$(part '"records":\[{"job":{"id":"\([^"]*\)"')
    [ -n "$id" ] || continue # nothing came within 20 s
    version=$(part '"version":\([0-9]*\)')
    task=$(part '"task":"\([a-z]*\)"')
    # The payload is a JSON array of the arguments, as a JSON text: "[\"hello\"]".
    argument=$(part '"payload":"\[\\"\([^"\\]*\)\\"\]"')
    after=
    ( # a subshell: `exit` ends this run
        "$task" "$argument"
        call settle "{\"outcomes\": [{\"id\": \"$id\", \"version\": $version, \"succeed\": \"$result\"}]}"
    ) || call settle "{\"outcomes\": [{\"id\": \"$id\", \"version\": $version, \"fail\": \"$task failed\"}]}"
done
