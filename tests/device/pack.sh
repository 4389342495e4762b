#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/device/pack.sh
# Builds what the device check runs into build/device, in a form that another machine of the same architecture, with a glibc
# as new, can run: the libraries lie beside the programs, and the core is one archive, against which run.sh builds the
# extension module for the Python that is there. Downloads nothing. Reads by threads alone where liburing is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
objects=build/device-build
pack=build/device
programs=(infercluster load_test checkpoint_test device_limits device_stall)
uring=ON
pkg-config --exists liburing || { uring=OFF; echo "pack: liburing is missing: threads read alone" >&2; }

mkdir -p "$objects"
cmake -S . -B "$objects" -G Ninja -DCMAKE_BUILD_TYPE=Release -DINFERCLUSTER_BENCH=OFF -DINFERCLUSTER_URING=$uring \
  "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags,-rpath,'\$ORIGIN/../lib:\$ORIGIN/../lib/gcc'" \
  >"$objects/configure.log" 2>&1 || { cat "$objects/configure.log" >&2; exit 1; }
cmake --build "$objects" --target "${programs[@]}"

rm -rf "$pack.new"
mkdir -p "$pack.new"/{bin,lib/gcc}
for program in "${programs[@]}"; do
  strip --strip-unneeded -o "$pack.new/bin/$program" "$objects/bin/$program"
  # What glibc brings is on every machine; everything else travels. The compiler's libraries are for the programs alone:
  # the extension module must take those of its Python, which may be newer.
  ldd "$objects/bin/$program" |
    awk '$2 == "=>" && $3 ~ /^\// && $1 !~ /^(libc|libm|libdl|librt|libpthread|libresolv)\.so/ { print $3 }' |
    while read -r library; do
      case $library in
        */libstdc++.so* | */libgcc_s.so*) cp -L "$library" "$pack.new/lib/gcc/" ;;
        *) cp -L "$library" "$pack.new/lib/" ;;
      esac
    done
done
archives=$(find "$objects/src" -name 'libic_*.a' ! -name libic_cli.a | sort)
{
  echo "create $pack.new/lib/libinfercluster_core.a"
  for archive in $archives; do echo "addlib $archive"; done
  printf 'save\nend\n'
} | ar -M
strip --strip-debug "$pack.new/lib/libinfercluster_core.a"
git rev-parse --short=12 HEAD >"$pack.new/commit" 2>/dev/null || echo unknown >"$pack.new/commit"
rm -rf "$pack"
mv "$pack.new" "$pack"
du -sh "$pack" | awk '{ print "pack: " $2 ": " $1 }'
