# shellcheck shell=bash
# The driver of a bash context: cells run in this shell, so that variables, functions, options and the directory stay.
#
# How this works: docs/contexts.md ("What a driver speaks") has the lines. Requests are `ID CRC BASE64(code)` and perhaps
# BASE64(variables). Names that begin with __pd_ are the driver's. Commands of the driver are called by `builtin` where
# code may have put a function in their place, programs by the paths that they had at the start, and options of the code (set -e, -u, -x ...) hold only while it runs.
#
# The code runs below no function of the driver, or its `declare` would make local variables; it is sourced.
#
# An interrupt: children have it from the process group. For the shell itself the trap of SIGINT sets a trap of DEBUG,
# which runs before each command that follows and answers 2: with extdebug, that returns from the function, or from
# what is sourced. So the code unwinds, function by function, until the driver is reached. `exit` in a cell does the
# same: it ends the cell, and the variables stay.

exec {__pd_in}<&0 {__pd_out}>&1 {__pd_err}>&2 {__pd_events}>&3 0</dev/null 3>&-
# Without base64 no request can be read: told as a language that is missing.
__pd_base64=$(builtin type -P base64) || builtin exit 127
__pd_gzip=$(builtin type -P gzip) __pd_tail=$(builtin type -P tail) __pd_od=$(builtin type -P od)
__pd_id='' __pd_seq=0 __pd_count=0 __pd_due=0 __pd_exit='' __pd_status=0 __pd_set='' __pd_before=() __pd_seen=()

# __pd_emit TYPE FIELDS: the marks, then the event.
__pd_emit() {
    __pd_seq=$((__pd_seq + 1))
    builtin printf '\x1e%s %d\x1e' "$__pd_id" "$__pd_seq" >&"$__pd_out"
    builtin printf '\x1e%s %d\x1e' "$__pd_id" "$__pd_seq" >&"$__pd_err"
    builtin printf '{"type":"%s","seq":%d,"id":"%s"%s}\n' "$1" "$__pd_seq" "$__pd_id" "$2" >&"$__pd_events"
}

# The end of a cell. A status that is not 0 is an error, as of a script.
__pd_end() {
    if ((__pd_due)); then
        __pd_emit error ',"name":"Interrupt","value":"interrupted","traceback":""'
    elif ((__pd_status)); then
        __pd_emit error ",\"name\":\"ExitStatus\",\"value\":\"exit status $__pd_status\",\"traceback\":\"\""
    fi
    __pd_memory
    if ((__pd_due || __pd_status)); then
        __pd_emit end ",\"ok\":false$__pd_used"
    else
        __pd_emit end ",\"ok\":true$__pd_used"
    fi
    __pd_id=''
}

# What this shell has in memory that is no file's, as a field of an event; nothing where the kernel does not say so.
__pd_memory() {
    builtin local __pd_text=''
    IFS= builtin read -r -d '' __pd_text 2>/dev/null </proc/$$/status
    __pd_used=''
    [[ $__pd_text =~ RssAnon:[^0-9]*([0-9]+)\ kB ]] && __pd_used=",\"memory\":$((BASH_REMATCH[1] * 1024))"
}

# The code has left the shell (set -e, set -u): the cell has an end all the same, and its context is gone.
__pd_left() {
    __pd_status=$?
    builtin set +eufvx
    if [[ -n $__pd_id ]] && { : >&"$__pd_events"; } 2>/dev/null; then
        __pd_end
    fi
}

# __pd_crc TEXT: its CRC-32, here for a short text and by gzip for a long one, which would take long.
__pd_crc() {
    builtin local LC_ALL=C __pd_crc=$((0xffffffff)) __pd_i __pd_bit __pd_char
    if [[ ${#1} -gt 256 && $__pd_gzip && $__pd_tail && $__pd_od ]]; then
        builtin read -r REPLY < <(builtin printf %s "$1" | "$__pd_gzip" -1 | "$__pd_tail" -c 8 | "$__pd_od" -An -tu4 -N4)
        return
    fi
    for ((__pd_i = 0; __pd_i < ${#1}; __pd_i++)); do
        builtin printf -v __pd_char %d "'${1:__pd_i:1}"
        ((__pd_crc ^= __pd_char & 255, 1))
        for ((__pd_bit = 0; __pd_bit < 8; __pd_bit++)); do
            ((__pd_crc = __pd_crc & 1 ? __pd_crc >> 1 ^ 0xedb88320 : __pd_crc >> 1, 1))
        done
    done
    REPLY=$((__pd_crc ^ 0xffffffff))
}

# __pd_variables BASE64: sets and exports NAME=VALUE..., and notes how it was in __pd_before.
__pd_variables() {
    builtin local __pd_entry __pd_variable
    __pd_before=()
    while IFS= builtin read -r -d '' __pd_entry; do
        __pd_variable=${__pd_entry%%=*}
        [[ $__pd_variable =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
        if [[ -v $__pd_variable ]]; then
            __pd_before+=("$__pd_variable=${!__pd_variable}")
        else
            __pd_before+=("$__pd_variable")
        fi
        builtin export "$__pd_variable=${__pd_entry#*=}"
    done < <("$__pd_base64" -d <<<"$1")
}

__pd_put_back() {
    builtin local __pd_entry
    for __pd_entry in "${__pd_before[@]}"; do
        if [[ $__pd_entry == *=* ]]; then
            builtin export "${__pd_entry?}"
        else
            builtin unset -v "$__pd_entry"
        fi
    done
    __pd_before=()
}

__pd_interrupt() {
    __pd_due=1
    __pd_return
}

exit() {
    builtin local __pd_was=$?
    if ((BASHPID != $$)); then
        builtin exit "${1:-$__pd_was}"    # of a subshell
    fi
    __pd_exit=${1:-$__pd_was}
    __pd_return
}

# Whether code runs, and not only the driver.
__pd_runs() {
    builtin local IFS=' '
    [[ " ${FUNCNAME[*]} " == *" source "* ]]
}

__pd_return() {
    if __pd_runs; then
        builtin shopt -s extdebug
        builtin trap __pd_unwind DEBUG
    fi
}

# Before a command of code that is to end: 2 returns from its function. The driver's own go on.
__pd_unwind() {
    if __pd_runs; then
        builtin return 2
    fi
}

# __pd_is_new ID: whether it is none of the last 64.
__pd_is_new() {
    builtin local __pd_one
    for __pd_one in "${__pd_seen[@]}"; do
        [[ $__pd_one != "$1" ]] || return 1
    done
    __pd_seen=("${__pd_seen[@]: -63}" "$1")
}

# Takes the words of a request; false for one that is damaged or was seen before.
__pd_take() {
    builtin local REPLY
    [[ $__pd_name =~ ^[A-Za-z0-9_-]{1,64}$ && $__pd_sum =~ ^[0-9a-fA-F]{8}$ ]] || return 1
    __pd_code=$("$__pd_base64" -d <<<"$__pd_data" 2>/dev/null && builtin printf x) || return 1
    __pd_code=${__pd_code%x}
    __pd_crc "$__pd_code"
    ((REPLY == 16#$__pd_sum)) && __pd_is_new "$__pd_name"
}

__pd_begin() {
    __pd_id=$__pd_name
    __pd_count=$((__pd_count + 1)) __pd_due=0 __pd_status=0 __pd_exit=''
    [[ -z $__pd_more ]] || __pd_variables "$__pd_more"
    builtin trap __pd_interrupt INT
    __pd_emit start ",\"count\":$__pd_count"
}

__pd_close() {
    builtin trap '' INT
    builtin trap - DEBUG
    builtin shopt -u extdebug
    __pd_status=${__pd_exit:-$__pd_status}
    __pd_put_back
    __pd_end
}

builtin trap '' INT
builtin trap __pd_left EXIT
shopt -s expand_aliases
__pd_memory
printf '{"type":"ready","seq":1,"version":"%d.%d.%d"%s}\n' "${BASH_VERSINFO[@]:0:3}" "$__pd_used" >&"$__pd_events"
__pd_seq=1

# What is sourced for each cell: the code, with the options it has set so far and without the driver's descriptors.
__pd_source='((!__pd_due)) || return 130
[[ -z $__pd_set ]] || builtin set "-$__pd_set"
builtin eval "$__pd_code" 63<&- {__pd_in}<&- {__pd_out}>&- {__pd_err}>&- {__pd_events}>&-'

while IFS=' ' builtin read -r -u "$__pd_in" __pd_name __pd_sum __pd_data __pd_more; do
    __pd_take || continue
    __pd_begin
    builtin source /dev/fd/63 63<<<"$__pd_source"
    { __pd_status=$? __pd_set=${-//[!abefhkmuvxBCEHPT]/}; builtin set +eufvx; } 2>/dev/null
    __pd_close
done
