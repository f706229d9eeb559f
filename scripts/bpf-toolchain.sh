#!/usr/bin/env bash
# bpf-toolchain.sh DIR: puts a Rust compiler for bpfel-unknown-none into DIR, a cache of 0.5 GB that may be deleted.
#
#   DIR/unpacked       Debian's rustc-web, its prebuilt core for BPF and the LLVM of both, unpacked (nothing is installed:
#                  no second rustc appears in anybody's PATH)
#   DIR/bin        rustc-bpf (that compiler) and bpf-linker (built from the crate registry against that LLVM)
#   DIR/stamp      "RUSTC_WEB_VERSION BPF_LINKER_VERSION", written last: without it the cache is not used
#
# RUSTC_WEB_VERSION asks for one package version; it fails when the archive has moved on. Unset, the newest is taken.
# Packages are verified by apt against the distribution's signed indexes, crates by bpf-linker's own lock file.
# Needs amd64 Debian with apt-get, dpkg-deb, g++, zlib1g-dev and cargo; not root.
set -euo pipefail

dir=$(mkdir -p "${1:?usage: $0 DIR}" && cd "$1" && pwd -P)
linker_version=${BPF_LINKER_VERSION:-0.13.0}
wanted=${RUSTC_WEB_VERSION:-}

fail() { printf 'bpf-toolchain: %s\n' "$*" >&2; exit 1; }
note() { printf 'bpf-toolchain: %s\n' "$*" >&2; }

exec 9>"$dir/.lock"
flock 9

if [ -f "$dir/stamp" ] && "$dir/bin/bpf-linker" --version >/dev/null 2>&1; then
  read -r have have_linker <"$dir/stamp"
  if [ "$have_linker" = "$linker_version" ] && { [ -z "$wanted" ] || [ "$wanted" = "$have" ]; }; then
    note "cached: rustc-web $have, bpf-linker $have_linker"
    exit 0
  fi
fi

for tool in apt-get dpkg-deb g++ cargo; do
  command -v "$tool" >/dev/null || fail "$tool is missing"
done
[ "$(dpkg --print-architecture)" = amd64 ] || fail "only amd64 is known to work"

# apt with lists and archives of its own; only the distribution's own sources are read.
apt_dir=$dir/apt
mkdir -p "$apt_dir/lists/partial" "$apt_dir/archives/partial" "$apt_dir/parts"
sources=$(grep -rlE 'debian-archive-keyring|^deb .*debian' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1) || true
[ -n "$sources" ] || fail "no Debian sources in /etc/apt"
list=$apt_dir/distribution.${sources##*.}
cp "$sources" "$list"
apt_options=(
  -o "Dir::State::lists=$apt_dir/lists" -o "Dir::Cache=$apt_dir" -o "Dir::Cache::archives=$apt_dir/archives"
  -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=" -o "Dir::Etc::sourcelist=$list"
  -o "Dir::Etc::sourceparts=$apt_dir/parts" -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none
  -o Acquire::Retries=3
)
candidate() { apt-cache "${apt_options[@]}" policy "$1" | sed -n 's/^  Candidate: //p'; }
depends() { apt-cache "${apt_options[@]}" show "$1" 2>/dev/null | sed -n 's/^Depends: //p' | head -1; }

apt-get "${apt_options[@]}" -qq update || fail "apt-get update failed"
version=${wanted:-$(candidate rustc-web)}
std=$(depends "libstd-rust-web-dev=$version" | grep -o 'libstd-rust-web-[0-9.]*' | head -1) ||
  fail "the archive has no rustc-web $version (it offers $(candidate rustc-web))"
llvm=$(depends "$std=$version" | grep -o 'libllvm[0-9]*' | head -1) || fail "$std does not name its LLVM"
llvm=${llvm#libllvm}
llvm_version=$(candidate "libllvm$llvm")
packages=(
  "rustc-web=$version" "$std=$version" "libstd-rust-web-dev=$version" "libstd-rust-web-dev-bpf=$version"
  "libllvm$llvm=$llvm_version" "llvm-$llvm=$llvm_version" "llvm-$llvm-dev=$llvm_version"
)
for library in libedit2 libbsd0 libmd0 libxml2 libz3-4 libffi8 libzstd1; do
  dpkg-query -W -f '${db:Status-Status}' "$library" 2>/dev/null | grep -qx installed || packages+=("$library")
done
note "unpacking ${packages[*]}"
(cd "$apt_dir/archives" && rm -f ./*.deb && apt-get "${apt_options[@]}" -qq download "${packages[@]}") ||
  fail "download failed"

rm -rf "$dir/stamp" "$dir/unpacked"
mkdir -p "$dir/unpacked" "$dir/bin"
for package in "$apt_dir"/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$dir/unpacked" --no-same-owner \
    --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/lib/rustlib/bpfeb-unknown-none \
    --exclude="./usr/lib/llvm-$llvm/lib/*.a" --exclude="./usr/lib/llvm-$llvm/build"
done
rm -f "$apt_dir"/archives/*.deb
libraries=$dir/unpacked/usr/lib/x86_64-linux-gnu
prefix=$dir/unpacked/usr/lib/llvm-$llvm
[ -e "$prefix/lib/libLLVM-$llvm.so" ] || ln -sf "$libraries/libLLVM-$llvm.so" "$prefix/lib/libLLVM-$llvm.so"

# RUSTC_BOOTSTRAP for one crate: aya-ebpf asks for feature(asm_experimental_arch).
cat >"$dir/bin/rustc-bpf" <<WRAPPER
#!/bin/sh
RUSTC_BOOTSTRAP=aya_ebpf LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$dir/unpacked/usr/bin/rustc" "\$@"
WRAPPER
chmod +x "$dir/bin/rustc-bpf"
"$dir/bin/rustc-bpf" -vV | grep -q "^LLVM version: $llvm\." || fail "the unpacked compiler does not run, or wants another LLVM than $llvm"

note "building bpf-linker $linker_version"
env -u CARGO_TARGET_DIR -u RUSTFLAGS -u CARGO_BUILD_TARGET \
  "LLVM_SYS_${llvm}1_PREFIX=$prefix" LLVM_PREFIX="$prefix" LD_LIBRARY_PATH="$libraries" RUSTC="$dir/bin/rustc-bpf" \
  CARGO_ENCODED_RUSTFLAGS="-Clink-arg=-Wl,-rpath,$libraries" \
  CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=true \
  cargo install bpf-linker --locked --force --version "=$linker_version" --root "$dir/linker" \
  --no-default-features --features "llvm-$llvm" --target-dir "$dir/linker-target" >&2 ||
  fail "bpf-linker $linker_version does not build against LLVM $llvm"
ln -sf "$dir/linker/bin/bpf-linker" "$dir/bin/bpf-linker"
rm -rf "$dir/linker-target" "$prefix/include" "$dir/unpacked/usr/include"
printf '%s %s\n' "$version" "$linker_version" >"$dir/stamp"
note "ready: rustc-web $version, LLVM $llvm_version, bpf-linker $linker_version in $dir"
