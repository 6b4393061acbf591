# Treadle with its server, its webhooks and Redis: what compose.yaml starts. Any command of `treadle` is its argument.
FROM python:3.12-slim

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".[server,http,redis,postgres]" && useradd --create-home treadle
USER treadle
WORKDIR /home/treadle

# `treadle` is the main process: SIGTERM reaches it, and it stops decently.
ENTRYPOINT ["treadle"]
CMD ["server", "--face", "delayed"]
