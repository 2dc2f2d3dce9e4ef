# Completion of paddock for bash: commands, options, sandbox ids and pids.
# Source it, or put it into /usr/share/bash-completion/completions/paddock.

_paddock_ids() {
    timeout 2 paddock ls -q 2>/dev/null </dev/null
}

_paddock_pids() {
    timeout 2 paddock ps "$1" 2>/dev/null </dev/null | awk 'NR > 1 { print $1 }'
}

# The options of a command; tests/lint/client_docs compares them with `paddock help`.
_paddock_options() {
    case $1 in
    run) echo --provider --mode --profile --min-isolation --user --workdir --env --network --name --root --image \
        --bind --timeout --memory --pids --cpu --disk --files --file-size --output --json ;;
    keeper) echo --socket --kind --program --option --builders --kits --owner --files ;;
    serve) echo --config --listen --listen-tls --state-dir --tls-cert --tls-key ;;
    config) echo --json --config ;;
    backend) echo --image --config ;;
    cert) echo --domain --name --dir --days --force ;;
    key) echo --tenant --label --admin --reader --state-dir ;;
    create) echo --session --auto-retry --user-id --thread-id --template --snapshot --provider --image --pull --git-url --mode --profile \
        --policy --memory --pids --cpu --disk --files -e --env -w --workdir --metadata \
        --idle-timeout --max-life --queue-timeout --idempotency-key --quiet --json ;;
    ls) echo -a --all -q --quiet --state --user-id --thread-id --metadata --search --newest --json ;;
    exec) echo --mode --session -c --command -d --detach -e --env -w --workdir -u --user --timeout \
        --idempotency-key --raw --json ;;
    shell) echo --session --attach -e --env -w --workdir -u --user ;;
    code) echo --session --language --context -e --env --timeout --save --raw --json ;;
    cp) echo --session -p --parents -u --user ;;
    ps) echo -a --all --tree --json ;;
    logs) echo -f --follow --stream --raw ;;
    kill) echo -s --signal ;;
    port) echo --by --expires --links --revoke --json ;;
    top) echo --once --interval --json ;;
    mv) echo --give-up --json ;;
    secret) echo --from-env --json ;;
    template) echo --name --tag --context --template --start --ready --memory --cpus --disk --no-cache -q --quiet --json ;;
    network) echo --allow --deny --egress --secret --denied --after -f --follow --json ;;
    route) echo --explain --provider --user --template --image --command --json ;;
    rm) echo --session ;;
    mcp) echo --thread ;;
    agent) echo -p --print --json --agent --model --model-timeout --window --max-turns --put --get --auto-approve \
        --allow --sandbox --yes-on-this-machine --template -c --continue -r --resume --target --dry-run --version ;;
    audit) echo --action --key --result --sandbox --tenant --limit --json ;;
    overview) echo --json ;;
    snapshot) echo --json ;;
    fork) echo --json ;;
    console) echo --json ;;
    esac
}

# What may follow an option, or nothing when that cannot be told.
_paddock_values() {
    case $1 in
    --profile) echo strict dev restricted ;;
    --state) echo creating running paused stopping gone all ;;
    --language) echo python javascript typescript bash r java ;;
    --stream) echo stdout stderr ;;
    --sandbox) echo paddock none ;;
    --user | -u) echo user root ;;
    --policy) echo open restricted allow: deny: ;;
    --signal | -s) echo TERM INT HUP KILL QUIT USR1 USR2 STOP CONT ;;
    --min-isolation) echo none basic full ;;
    --network) echo none host ;;
    esac
}

_paddock() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]-} i id=
    local commands="run doctor root image keeper serve key cert config create ls exec shell code cp ps logs \
        kill port top route mv fork snapshot rm secret network template overview audit mcp console agent backend help"
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word")
        return
    fi
    case $command in
    help) mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word") && return ;;
    image) mapfile -t COMPREPLY < <(compgen -W "pull import ls inspect rm prune" -- "$word") && return ;;
    template) ((COMP_CWORD == 2)) && mapfile -t COMPREPLY < <(compgen -W "build ls inspect rm prune" -- "$word") && return ;;
    snapshot) ((COMP_CWORD == 2)) && mapfile -t COMPREPLY < <(compgen -W "create ls rm" -- "$word") && return ;;
    root) mapfile -t COMPREPLY < <(compgen -W "ls rm" -- "$word") && return ;;
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_paddock_options "$command") --help" -- "$word")
        return
    fi
    local values
    values=$(_paddock_values "$before")
    if [[ -n $values ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
        return
    fi
    for ((i = 2; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} =~ ^[a-z0-9]{20}$ ]] && id=${COMP_WORDS[i]}
    done
    case $command in
    backend) ((COMP_CWORD == 2)) && mapfile -t COMPREPLY < <(compgen -W "check" -- "$word") ;;
    key) ((COMP_CWORD == 2)) && mapfile -t COMPREPLY < <(compgen -W "create list revoke" -- "$word") ;;
    rm) mapfile -t COMPREPLY < <(compgen -W "$(_paddock_ids)" -- "$word") ;;
    exec | shell | code | ps | port | fork | snapshot)
        [[ -n $id ]] || mapfile -t COMPREPLY < <(compgen -W "$(_paddock_ids)" -- "$word")
        ;;
    logs | kill)
        if [[ -n $id ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$(_paddock_pids "$id")" -- "$word")
        else
            mapfile -t COMPREPLY < <(compgen -W "$(_paddock_ids)" -- "$word")
        fi
        ;;
    cp)
        mapfile -t COMPREPLY < <(compgen -S : -W "$(_paddock_ids)" -- "$word" && compgen -f -- "$word")
        compopt -o nospace -o filenames 2>/dev/null
        ;;
    esac
}

complete -F _paddock -o default paddock
