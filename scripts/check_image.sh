#!/usr/bin/env bash
# Builds the server's image and shows that it runs as a platform would run it.
#
#   scripts/check_image.sh                       with docker or podman
#   scripts/check_image.sh --debootstrap         with buildah, as root, where no engine runs; makes its base first
#   scripts/check_image.sh --rootfs FILE.tar     the same, on a root file system with python3 and python3-venv
#   BASE_IMAGE=… scripts/check_image.sh          on another base
#
# BUILD_ARGUMENTS are handed to the build, such as a --volume with an authority's certificate.
# Shown: it starts without root, on a root file system that it can't write, over a volume; its health check answers; a
# step is found again by the next container; SIGTERM drains it, with exit code 0.
# Exit code 0: all of it was seen. 1: something wasn't. 3: nothing here builds or runs images, and what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

image=localhost/agenttx-checked
work=$(mktemp -d)
container="" init=""
read -r -a build_arguments <<<"${BUILD_ARGUMENTS:-}"
put='import agenttx,sys
with agenttx.Client(sys.argv[1]) as c, c.transaction(agent_id="image") as t: t.step("kv.put", key="image", value="checked")'
extras='import psycopg, opentelemetry.exporter.otlp.proto.grpc, agenttx_server.telemetry.server_tracing'
get='import agenttx,sys
with agenttx.Client(sys.argv[1]) as c, c.transaction(agent_id="image") as t:
    found = t.step("kv.get", key="image").output
    assert found["value"] == "checked", found'

say() { printf 'image: %s\n' "$*"; }
cannot() { printf 'image: not checked: %s\n' "$*" >&2; exit 3; }
failed() { printf 'image: FAILED: %s\n' "$*" >&2; exit 1; }

if docker info >/dev/null 2>&1; then engine=docker
elif podman info >/dev/null 2>&1; then engine=podman
elif command -v buildah >/dev/null; then engine=buildah
else cannot "no docker or podman engine answers, and buildah is not installed"
fi

# --- buildah: the image's root file system, mounted read-only in a mount namespace of its own -------------

store=(buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

buildah_base() {
  [[ $(id -u) = 0 ]] || cannot "buildah without an engine needs root"
  case "${1:-}" in
    --rootfs) cp "$2" "$work/base.tar" ;;
    --debootstrap)
      command -v debootstrap >/dev/null || cannot "debootstrap is not installed"
      say "making a base with debootstrap"
      debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$work/base" >"$work/base.log"
      tar --directory "$work/base" --create --file "$work/base.tar" .
      rm -rf "$work/base"
      ;;
    *) cannot "no engine answers; with --debootstrap or --rootfs FILE.tar buildah gets a base" ;;
  esac
  printf 'FROM scratch\nADD base.tar /\n' >"$work/Containerfile"
  printf '{"default":[{"type":"insecureAcceptAnything"}]}' >"$work/policy.json"
  "${store[@]}" bud --isolation chroot --signature-policy "$work/policy.json" --tag localhost/agenttx-base \
    --file "$work/Containerfile" "$work" >"$work/base.log" 2>&1
  BASE_IMAGE=localhost/agenttx-base
}

buildah_build() {
  "${store[@]}" bud --isolation chroot --signature-policy "$work/policy.json" --pull-never \
    --build-arg "BASE_IMAGE=$BASE_IMAGE" "${build_arguments[@]}" --file docker/Dockerfile --tag "$image" .
  container=$("${store[@]}" from --pull-never --signature-policy "$work/policy.json" "$image")
  root=$("${store[@]}" mount "$container")
}

buildah_start() {
  # The image's own user, entry point and environment; only the port is another, for the network is the host's.
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    mount --bind "$1" "$1"; mount --bind "$2" "$1/data"; mount -t tmpfs tmpfs "$1/tmp"; mount -t proc proc "$1/proc"
    mount -o remount,ro,bind "$1"
    exec chroot "$1" setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs --bounding-set=-all /usr/bin/env -i \
      PATH=/opt/agenttx/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 HOME=/data AGENTTX_ALLOW_PLAINTEXT=true \
      AGENTTX_ANONYMOUS=anyone agenttx serve --listen "0.0.0.0:$3" --data-dir /data
  ' init "$root" "$work/data" "$port" >"$work/server.log" 2>&1 &
  init=$!
}

buildah_exec() {
  local server
  server=$(pgrep --parent "$init" | head -1)
  nsenter --target "$server" --mount --pid --root --wd setpriv --reuid=10001 --regid=10001 --clear-groups \
    /usr/bin/env -i PATH=/opt/agenttx/bin:/usr/bin:/bin "AGENTTX_ADDRESS=127.0.0.1:$port" "$@"
}

buildah_stop() {
  kill -TERM "$(pgrep --parent "$init" | head -1)"
  local code=0
  wait "$init" || code=$?
  init=""
  return "$code"
}

# --- docker and podman ------------------------------------------------------------------------------------

engine_base() { BASE_IMAGE=${BASE_IMAGE:-python:3.11-slim}; }
engine_build() {
  "$engine" build --build-arg "BASE_IMAGE=$BASE_IMAGE" "${build_arguments[@]}" --file docker/Dockerfile --tag "$image" .
}
engine_start() {
  port=50051
  container=$("$engine" run --detach --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
    --volume "$work/data:/data" --env AGENTTX_ALLOW_PLAINTEXT=true --env AGENTTX_ANONYMOUS=anyone "$image")
}
engine_exec() { "$engine" exec "$container" "$@"; }
engine_stop() {
  "$engine" stop --time 45 "$container" >/dev/null
  local code
  code=$("$engine" wait "$container")
  "$engine" logs "$container" >"$work/server.log" 2>&1
  "$engine" rm "$container" >/dev/null
  container=""
  return "$code"
}

# ----------------------------------------------------------------------------------------------------------

clean_up() {
  [[ -z "$init" ]] || kill -KILL "$init" 2>/dev/null || true
  if [[ $engine = buildah ]]; then "${store[@]}" rm --all >/dev/null 2>&1 || true
  elif [[ -n "$container" ]]; then "$engine" rm --force "$container" >/dev/null 2>&1 || true
  fi
  rm -rf "$work"
}
trap clean_up EXIT

kind=engine
[[ $engine != buildah ]] || kind=buildah
"${kind}_base" "$@"
say "building on $BASE_IMAGE with $engine"
"${kind}_build" >"$work/build.log" 2>&1 || { tail -20 "$work/build.log" >&2; failed "it can't be built"; }
mkdir --mode=0750 "$work/data"
chown 10001:10001 "$work/data" 2>/dev/null || chmod 0777 "$work/data"

wait_until_healthy() {
  for ((tries = 0; tries < 60; tries++)); do
    [[ -z "$init" ]] || kill -0 "$init" 2>/dev/null || break
    if "${kind}_exec" agenttx health >/dev/null 2>&1; then return; fi
    sleep 0.5
  done
  cat "$work/server.log" >&2 2>/dev/null || "$engine" logs "$container" >&2
  failed "its health check never answered"
}

for round in first second; do
  "${kind}_start"
  wait_until_healthy
  if [[ $round = first ]]; then
    [[ $("${kind}_exec" id -u) = 10001 ]] || failed "it runs as another user than 10001"
    if "${kind}_exec" sh -c 'touch /opt/agenttx/x' 2>/dev/null; then failed "its root file system can be written"; fi
    "${kind}_exec" python3 -c "$extras" || failed "PostgreSQL or traces can't be served from it"
    "${kind}_exec" python3 -c "$put" "127.0.0.1:$port" || failed "no step"
    say "it serves as user 10001, read-only, and its health check answers"
  else
    "${kind}_exec" python3 -c "$get" "127.0.0.1:$port" || failed "the next container lost a step"
    say "the next container has the first one's step"
  fi
  "${kind}_stop" || { cat "$work/server.log" >&2; failed "it ended with exit code $? on SIGTERM"; }
  grep -q draining "$work/server.log" || failed "it did not say that it drains"
done
say "SIGTERM drained it, with exit code 0"
