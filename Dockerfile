# syntax=docker/dockerfile:1
#
# One image for every command of amble: `docker build -t amble:0.1.0 .`
#
# Reproducible as far as the base is: give it by digest, and the time of the sources.
#   docker buildx build --build-arg PYTHON_IMAGE=python:3.13-slim-trixie@sha256:... \
#     --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" \
#     --output type=image,name=amble:0.1.0,rewrite-timestamp=true .
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1
# The compiler is for amble's own C module and stays in this stage. Its version comes with the base image.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build

# Every wheel of the lock file, each held to its hash. Unchanged as long as the lock file is.
COPY requirements.lock ./
RUN pip download --quiet --require-hashes --only-binary :all: --dest wheels --requirement requirements.lock

# amble itself, built with locked tools only.
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
RUN python -m venv tools \
 && tools/bin/pip install --quiet --no-index --find-links wheels setuptools wheel \
 && tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir wheels .

# What amble needs to run, and only that: nothing comes from anywhere but the wheels above. Bytecode that is valid by
# hash is the same in every build and is never rewritten, so the file system of a container may be read-only.
# hadolint ignore=DL3013
RUN python -m venv --without-pip /opt/amble \
 && pip --python /opt/amble/bin/python install --quiet --no-index --find-links wheels --no-compile 'amble[fleet]' \
 && /opt/amble/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/amble/lib \
 && /opt/amble/bin/python -c 'import amble._native'

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="amble" \
      org.opencontainers.image.description="A polite, durable, distributed web crawler" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, so that an orchestrator can see that it is not root. It owns nothing but its own folder.
RUN groupadd --system --gid 10001 amble \
 && useradd --system --uid 10001 --gid amble --home-dir /var/lib/amble --no-create-home --shell /usr/sbin/nologin amble \
 && install --directory --owner amble --group amble --mode 0750 /var/lib/amble
COPY --from=build /opt/amble /opt/amble
ENV PATH=/opt/amble/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/amble
STOPSIGNAL SIGTERM
# No HEALTHCHECK: the image serves commands that end at once, too. Whoever starts a long-running command with --health
# knows its port; compose.yaml and the Kubernetes manifests do.
ENTRYPOINT ["amble"]
CMD ["--help"]
