# Both images, from the root of the repository:
#
#   docker build -t batchedapi-serving .
#   docker build -t batchedapi-operator --build-arg PART=operator .
#
# To add what a model needs to the serving image, build on it:
#
#   FROM batchedapi-serving
#   USER root
#   RUN pip install --no-cache-dir scikit-learn
#   USER 65532
#   COPY model.py /app/
ARG BASE_IMAGE=docker.io/library/python:3.12-slim
# The same Python, with a C compiler: the path of a request is compiled here.
ARG BUILD_IMAGE=docker.io/library/python:3.12
# The folder, an extra of pyproject.toml and the last stage have the same name: serving, operator.
ARG PART=serving

FROM ${BASE_IMAGE} AS dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/venv
WORKDIR /src
ARG PART
# Made by `make requirements`. A package that has none of its hashes ends the build.
COPY requirements/${PART}.txt ./
# The secrets are optional: how pip reaches packages from where the build runs. Nothing is installed
# into the operator's image later, so pip itself goes.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=pip-cert,target=/run/secrets/pip-cert \
    /opt/venv/bin/pip install --no-compile --require-hashes -r ${PART}.txt \
    && /opt/venv/bin/pip uninstall -q -y setuptools $([ "$PART" = serving ] || echo pip)
# Compiled here, for good: containers run with a read-only root, and would compile on every start.
RUN /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${BUILD_IMAGE} AS wheel
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.txt ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=pip-cert,target=/run/secrets/pip-cert \
    python3 -m venv /opt/build && /opt/build/bin/pip install --no-compile --require-hashes -r build.txt
ARG PART
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY core core
COPY ${PART} ${PART}
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=true \
    /opt/build/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir dist .

FROM dependencies AS project
COPY --from=wheel /src/dist dist
RUN python3 -m venv /opt/install \
    && /opt/install/bin/pip --python /opt/venv/bin/python install --no-index --no-deps --no-compile --prefix /opt/project dist/*.whl \
    && /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/project

FROM ${BASE_IMAGE} AS runtime
# python:*-slim comes without compiled standard library; the user has a name and a home for the
# libraries that ask, and /tmp is what a read-only container is given to write to.
RUN python3 -m compileall -q -x '/(test|tests|site-packages|dist-packages|lib2to3)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && echo 'batchedapi:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'batchedapi:x:65532:' >> /etc/group
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Two layers: a new version of the project is a small download.
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=project /opt/project /opt/venv
WORKDIR /app
USER 65532:65532

FROM runtime AS serving
LABEL org.opencontainers.image.title="batchedapi-serving" \
      org.opencontainers.image.description="Serves a predictor, forming batches across clients." \
      org.opencontainers.image.licenses="Apache-2.0"
# As process 1 a program does not get signals that it has no handlers for, and the interpreter takes a
# moment to start: blocked, they wait for it. (env of coreutils, since 8.31)
ENTRYPOINT ["env", "--block-signal=TERM,INT", "batchedapi"]
CMD ["serve"]

FROM runtime AS operator
LABEL org.opencontainers.image.title="batchedapi-operator" \
      org.opencontainers.image.description="Runs BatchedAPIs on Kubernetes and scales them." \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["env", "--block-signal=TERM,INT", "python", "-m", "batchedapi_operator"]

FROM ${PART}
