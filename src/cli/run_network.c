/* A run with rules for the network has a gate of its own: the same program, started anew so that it
 * has nothing of ours in its memory. It is sent the jail's sockets as soon as the jail exists; what
 * the command connects to before that waits. It ends with us, because its only client is gone. */
#include "cli/run_network.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "gate/resolvers.h"
#include "jail/jail.h"
#include "wire/gate_msg.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define SEND_PATIENCE (5 * NS_PER_S)
#define RUN_ID        "run"

static const char *const names[] = {"--allow",         "--deny",        "--egress",
                                    "--allow-private", "--egress-host", "--resolver"};

bool run_egress_knows(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

static int add(const char **list, unsigned *count, unsigned most, const char *name,
               const char *value, struct pd_err *e)
{
    if (*count == most)
        return pd_fail(e, PD_INVALID, "%s: more than %u", name, most);
    /* A newline would begin a line of its own in the policy. */
    if (strpbrk(value, "\n \t"))
        return pd_fail(e, PD_INVALID, "%s: '%.80s' has blanks in it", name, value);
    list[(*count)++] = value;
    return 0;
}

int run_egress_parse(struct run_egress *g, const char *name, const char *value, struct pd_err *e)
{
    g->given = true;
    if (!strcmp(name, "--allow"))
        return add(g->allow, &g->allow_count, RUN_RULES_MAX, name, value, e);
    if (!strcmp(name, "--deny"))
        return add(g->deny, &g->deny_count, RUN_RULES_MAX, name, value, e);
    if (!strcmp(name, "--allow-private"))
        return add(g->privates, &g->private_count, RUN_RULES_MAX, name, value, e);
    if (!strcmp(name, "--egress-host"))
        return add(g->hosts, &g->host_count, RUN_RULES_MAX, name, value, e);
    if (!strcmp(name, "--resolver"))
        return add(g->resolvers, &g->resolver_count, POLICY_RESOLVERS, name, value, e);

    g->mode_given = true;
    return egress_mode_parse(name, value, &g->mode, e);
}

static void put_lines(struct buf *out, const char *word, const char *const *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        buf_printf(out, "%s %s\n", word, list[i]);
}

static void make_policy(const struct run_egress *g, struct buf *out)
{
    buf_printf(out, "layer %s\n", egress_mode_name(g->mode_given ? g->mode : EGRESS_LIST));
    put_lines(out, "allow", g->allow, g->allow_count);
    put_lines(out, "deny", g->deny, g->deny_count);
    put_lines(out, "private", g->privates, g->private_count);
    put_lines(out, "host", g->hosts, g->host_count);
    put_lines(out, "resolver", g->resolvers, g->resolver_count);
    if (!g->resolver_count)
        resolvers_read(out);
}

int run_egress_check(const struct run_egress *g, struct pd_err *e)
{
    auto_buf text = BUF_INIT(POLICY_TEXT_MAX);
    struct egress_policy *p;

    if (!g->given)
        return 0;
    make_policy(g, &text);
    if (text.overflow)
        return pd_fail(e, PD_INVALID, "--allow: the rules are too long");
    if (egress_parse((const char *)text.data, text.len, &p, e) < 0)
        return -1;
    egress_free_policy(p);
    return 0;
}

int run_network_start(struct run_network *n, struct pd_err *e)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a socket");
    auto_fd ours = pair[0], theirs = pair[1];

    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "start a gate");
    if (pid == 0) {
        char *const argv[] = {(char *)"paddock", (char *)"gate", (char *)"--client", (char *)"3",
                              NULL};
        char *const env[] = {NULL};
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        setsid();
        dup2(null, 0);
        dup2(null, 1);
        if (theirs == 3)
            fcntl(3, F_SETFD, 0);
        else
            dup2(theirs, 3);
        syscall(SYS_close_range, 4, ~0u, 0);
        if (chdir("/") == 0)
            execve("/proc/self/exe", argv, env);
        _exit(127);
    }

    n->sock = fd_take(&ours);
    return 0;
}

int run_network_open(struct run_network *n, const struct run_egress *g, struct jail *j,
                     struct pd_err *e)
{
    auto_buf text = BUF_INIT(POLICY_TEXT_MAX), out = BUF_INIT(WIRE_PAYLOAD_MAX);

    if (j->gate[0] < 0)
        return pd_fail(e, PD_PROTOCOL, "the keeper made a jail without a way out");
    make_policy(g, &text);
    struct gate_open m = {.id = RUN_ID, .policy = buf_cstr(&text)};
    gate_open_encode(&out, &m);

    struct wire_head head = {.type = GATE_OPEN, .id = wire_id_new()};
    int r = wire_send(n->sock, &head, &out, j->gate, 2, deadline_in(SEND_PATIENCE));
    fd_done(&j->gate[0]);
    fd_done(&j->gate[1]);
    return r < 0 ? pd_fail(e, PD_LOST, "the gate of this run does not answer") : 0;
}

static void note_denied(struct run_network *n, const struct gate_record *r)
{
    const char *host = r->name[0] ? r->name : r->address;

    for (unsigned i = 0; i < n->denied_count; i++) {
        struct run_denied *d = &n->denied[i];
        if (d->port == r->port && !strcmp(d->host, host)) {
            d->times++;
            return;
        }
    }
    if (n->denied_count == RUN_DENIED_MAX)
        return;

    struct run_denied *d = &n->denied[n->denied_count++];
    snprintf(d->host, sizeof d->host, "%s", host);
    snprintf(d->why, sizeof d->why, "%.79s", r->why);
    d->port = r->port;
    d->times = 1;
}

/* One frame. -1: the gate is gone, or has said that it is done. */
static int take_frame(struct run_network *n, deadline d)
{
    auto_frame f = FRAME_INIT;
    struct gate_record r;
    struct pd_err e;

    int got = wire_recv_plain(n->sock, &f, d, &e);
    if (got < 0 && e.code == PD_TIMEOUT)
        return 0;
    if (got <= 0)
        return -1;
    if (f.head.type == GATE_RECORD && gate_record_decode(&f.payload, &r, &e) == 0 &&
        (r.result == GATE_REFUSED || r.result == GATE_CUT))
        note_denied(n, &r);
    return f.head.type == GATE_RECORD ? 1 : 2;
}

void run_network_hear(struct run_network *n)
{
    int r = 1;
    while (n->sock >= 0 && r > 0)
        r = take_frame(n, 0);
    if (r < 0)
        fd_done(&n->sock);
}

/* Whatever it is asked now it answers after its news. */
void run_network_finish(struct run_network *n, deadline d)
{
    struct wire_head head = {.type = GATE_SYNC, .id = wire_id_new()};

    if (n->sock < 0)
        return;
    run_network_hear(n);
    if (n->sock >= 0 && wire_send(n->sock, &head, NULL, NULL, 0, d) == 0)
        while (!deadline_passed(d)) {
            int r = take_frame(n, d);
            if (r < 0 || r == 2)
                break;
        }
    fd_done(&n->sock);
}

void run_network_json(const struct run_network *n, struct json *j)
{
    json_key(j, "network");
    json_open(j, '{');
    json_key(j, "denied");
    json_open(j, '[');
    for (unsigned i = 0; i < n->denied_count; i++) {
        const struct run_denied *d = &n->denied[i];
        json_open(j, '{');
        json_key(j, "host");
        json_cstr(j, d->host);
        json_key(j, "port");
        json_uint(j, d->port);
        json_key(j, "why");
        json_cstr(j, d->why);
        json_key(j, "times");
        json_uint(j, d->times);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_close(j, '}');
}

void run_network_explain(const struct run_network *n)
{
    for (unsigned i = 0; i < n->denied_count; i++) {
        const struct run_denied *d = &n->denied[i];
        fprintf(stderr, "paddock: network: refused %s:%u: %s", d->host, d->port, d->why);
        if (d->times > 1)
            fprintf(stderr, " (%u times)", d->times);
        fputc('\n', stderr);
    }
}
