# Not built in CI (there is no Docker engine there). A small image: no torch, no compiler, a user of its own.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN python -m venv /opt/capsnmt && /opt/capsnmt/bin/pip install --no-cache-dir -c constraints.txt '.[serve]'

FROM python:3.12-slim
RUN useradd --system --create-home --uid 10001 capsnmt
COPY --from=build /opt/capsnmt /opt/capsnmt
USER capsnmt
WORKDIR /home/capsnmt
ENV PATH=/opt/capsnmt/bin:$PATH PYTHONUNBUFFERED=1
EXPOSE 5000
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5000/health', timeout=3)"]
# In a container all addresses are the container's; who may call from outside is the port mapping's business.
ENTRYPOINT ["capsnmt", "serve", "--host", "0.0.0.0"]
