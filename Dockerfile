# Treadle with its server, its webhooks and Redis: what compose.yaml starts. Any command of `treadle` is its argument.
# By tag: its digest takes a registry to look up, see docs/guides/security.md.
FROM python:3.12-slim

WORKDIR /app
# Pinned with hashes: `python3 dev.py pins` writes the file.
COPY requirements/image.txt ./requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --no-deps --no-build-isolation . && useradd --create-home treadle
USER treadle
WORKDIR /home/treadle

# `treadle` is the main process: SIGTERM reaches it, and it stops decently.
ENTRYPOINT ["treadle"]
# In a container: which addresses reach it, is said when its port is published (`docker run -p 127.0.0.1:8080:8080`).
CMD ["server", "--protocol", "delayed", "--host", "0.0.0.0"]
