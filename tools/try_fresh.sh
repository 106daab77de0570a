#!/bin/bash
# Tries the project as a newcomer would: a minimal Debian 12 in a folder, a fresh clone of HEAD, one make target.
#   tools/try_fresh.sh FOLDER [TARGET]     as root; needs debootstrap and about 4 GB; TARGET defaults to demo
# A second call with the same FOLDER keeps the system and its packages, and takes the newest HEAD.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: tools/try_fresh.sh FOLDER [TARGET]}
target=${2:-demo}
# The mirror that this machine uses itself.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
  awk '/^deb /{for (i = 2; i <= NF; ++i) if ($i ~ /^http/) {print $i; exit}} /^URIs:/{print $2; exit}')

if [ ! -e "$folder/etc/debian_version" ]; then
  debootstrap --variant=minbase bookworm "$folder" "$mirror"
  cat >"$folder/etc/apt/sources.list" <<EOF
deb $mirror bookworm main
deb $mirror bookworm-updates main
EOF
fi
cp /etc/resolv.conf "$folder/etc/resolv.conf"
# What this machine needs to reach its mirrors (proxies, certificates) the fresh system needs as well.
for file in /etc/apt/apt.conf.d/*proxy* /etc/hosts; do
  if [ -f "$file" ]; then cp "$file" "$folder$file"; fi
done
mkdir -p "$folder/usr/local/share/ca-certificates"
cp /usr/local/share/ca-certificates/*.crt "$folder/usr/local/share/ca-certificates/" 2>/dev/null || true

# Mounts live in a namespace of their own and the host's /dev is never among them (debootstrap made the few nodes that
# are needed): removing the folder, even in the middle of a run, cannot reach the host.
in_fresh() {
  unshare --mount --propagation private bash -c 'mount -t proc proc "$1/proc" && exec chroot "$@"' in_fresh "$folder" \
    /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb "$@"
}

# The two commands of the README start here: git and make, then the clone.
in_fresh sh -c 'apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  git make ca-certificates >/dev/null && update-ca-certificates >/dev/null'
rm -rf "$folder/root/tailrace"
git clone -q --no-hardlinks . "$folder/root/tailrace"
in_fresh bash -c "set -o pipefail; cd /root/tailrace && time make $target </dev/null | cat"
