/* paddock-box: what runs in a box on another machine, in any image.
 *
 *   paddock-box run key=FILE|-|env box=ID [lease=SECONDS] [words of init's]
 *
 * is the first process there. It reads the box's key and removes the file, or waits for somebody
 * who says it, for as long as the lease; then it forks: the child is the far end of the link and
 * has the key, under a uid of its own; the first process forgets the key and becomes init, whose
 * owner the child is. When either ends, the box does.
 *
 *   paddock-box key
 *
 * says the key that it reads from its standard input to a box that waits for it.
 *
 *   paddock-box put DIR
 *
 * copies this program to DIR/box, for boxes that see DIR and have another image.
 *
 *   paddock-box start listen=PORT key=FILE box=ID ...
 *
 * is the same where it is not the first process: it goes on in the background, and the command ends
 * when it can be dialled. With listen=PORT the far end also takes WebSockets at that port, for who
 * asks for /link/ID.
 *
 * With call=HOST:PORT pin=KEY nobody has to reach the box: a third process calls there, by TLS, and
 * copies (caller.h). The keeper writes label=TEXT to find its boxes by; nothing here reads it.
 *
 * With bucket=/DIRECTORY/PREFIX that process finds the connection in files of a bucket (letters.h).
 *
 *   paddock-box join
 *
 * is a connection to that far end, by its standard input and output. As `sudo` it is init's shim.
 */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "box/apart.h"
#include "box/bucket.h"
#include "box/caller.h"
#include "box/dialled.h"
#include "box/far.h"
#include "box/join.h"
#include "box/key.h"
#include "box/near.h"
#include "box/put.h"
#include "init/fds.h"
#include "init/init.h"
#include "init/sudo.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define FAR_UID    60001u /* next to init's; no command has it */
#define BUDGET     (16u << 20)
#define LEASE      900u
#define LEASE_MOST (30ull * 24 * 3600)
#define WORDS_MOST 16

struct options {
    const char *key_file;
    struct far_config far;
    uint64_t port; /* 0: nobody dials */
    char target[DIALLED_TARGET];
    struct caller caller;
    bool calls, is_pinned;
    struct bucket bucket;        /* its path is "" where there is none */
    char *words[WORDS_MOST + 3]; /* of init */
    int count;
};

static int complain(const struct pd_err *e)
{
    fprintf(stderr, "paddock-box: %s\n", e->msg);
    return 1;
}

static int read_id(const char *text, struct wire_id *ret, struct pd_err *e)
{
    if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return pd_fail(e, PD_INVALID, "box=%.40s: must be 32 hexadecimal digits", text);
    for (unsigned i = 0; i < 16; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], 0};
        ret->bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return 0;
}

static int read_options(int argc, char **argv, struct options *o, struct pd_err *e)
{
    uint64_t lease = LEASE;
    bool has_box = false;
    o->words[o->count++] = argv[0];
    o->words[o->count++] = (char *)INIT_ARG_LOCAL;

    for (int i = 2; i < argc; i++) {
        if (!strncmp(argv[i], "key=", 4)) {
            o->key_file = argv[i] + 4;
        } else if (!strncmp(argv[i], "box=", 4)) {
            if (read_id(argv[i] + 4, &o->far.who.box, e) < 0)
                return -1;
            snprintf(o->target, sizeof o->target, "/link/%.32s", argv[i] + 4);
            snprintf(o->caller.name, sizeof o->caller.name, "%.32s" CALLER_SUFFIX, argv[i] + 4);
            has_box = true;
        } else if (!strncmp(argv[i], "listen=", 7)) {
            if (parse_u64("listen", argv[i] + 7, 1, 65535, &o->port, e) < 0)
                return -1;
        } else if (!strncmp(argv[i], "call=", 5)) {
            if (caller_read_place(argv[i] + 5, &o->caller, e) < 0)
                return -1;
            o->calls = true;
        } else if (!strncmp(argv[i], "pin=", 4)) {
            if (caller_read_pin(argv[i] + 4, &o->caller, e) < 0)
                return -1;
            o->is_pinned = true;
        } else if (!strncmp(argv[i], "bucket=", 7)) {
            if (bucket_read(argv[i] + 7, &o->bucket, e) < 0)
                return -1;
        } else if (!strncmp(argv[i], "label=", 6)) {
            continue;
        } else if (!strncmp(argv[i], "lease=", 6)) {
            if (parse_u64("lease", argv[i] + 6, 1, LEASE_MOST, &lease, e) < 0)
                return -1;
        } else if (o->count < WORDS_MOST) {
            o->words[o->count++] = argv[i];
        }
    }
    o->far.lease = lease * NS_PER_S;
    if (!o->key_file || !has_box)
        return pd_fail(e, PD_INVALID, "run needs key=FILE or key=-, and box=ID");
    if (o->calls != o->is_pinned)
        return pd_fail(e, PD_INVALID, "call=HOST:PORT needs pin=KEY, and the other way round");
    if ((o->calls && !caller_can()) || (o->bucket.path[0] && !bucket_can()))
        return pd_fail(e, PD_UNSUPPORTED,
                       "this paddock-box was built without BearSSL and cannot %s",
                       o->calls ? "call" : "use a bucket");
    return 0;
}

static int listen_for_joins(struct pd_err *e)
{
    struct sockaddr_un a;
    socklen_t len = join_address(JOIN_LINK, &a);
    auto_fd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) < 0 || listen(fd, 8) < 0)
        return pd_fail_sys(e, "listen for connections of the link");
    return fd_take(&fd);
}

/* Commands can neither signal it nor look into it, where a uid can be given. */
static int shed(struct pd_err *e)
{
    if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(FAR_UID, FAR_UID, FAR_UID) < 0 ||
                           setresuid(FAR_UID, FAR_UID, FAR_UID) < 0))
        return pd_fail_sys(e, "become a user of its own");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return pd_fail_sys(e, "become undumpable");
    prctl(PR_SET_NAME, "paddock-link", 0, 0, 0);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    return 0;
}

static _Noreturn void be_far(struct options *o)
{
    struct pd_err e;
    (void)signal(SIGPIPE,
                 SIG_IGN); /* a command that does not read its input must not end the box */
    if (shed(&e) < 0 || far_run(&o->far, &e) < 0)
        _exit(complain(&e));
    _exit(0);
}

/* The process that brings the link to its keeper where nobody can dial the box. */
static int start_caller(const struct options *o, int owner, struct pd_err *e)
{
    struct pd_err why;
    pid_t own = getpid(), pid = o->calls || o->bucket.path[0] ? fork() : 1;

    if (pid < 0)
        return pd_fail_sys(e, "fork");
    if (pid > 0)
        return 0;
    close(owner);
    if (shed(&why) < 0)
        _exit(complain(&why));
    prctl(PR_SET_NAME, "paddock-caller", 0, 0, 0);
    if (o->bucket.path[0])
        bucket_run(&o->bucket, own);
    caller_run(&o->caller, own);
}

static int listen_for_all(struct options *o, struct pd_err *e)
{
    o->far.target = o->target;
    o->far.dialers = -1;
    o->far.listener = listen_for_joins(e);
    if (o->far.listener < 0)
        return -1;
    if (o->port)
        o->far.dialers = apart_listen((unsigned)o->port, e);
    return o->port && o->far.dialers < 0 ? -1 : 0;
}

/* Returns only when it failed. `apart`: in the background. */
static int run(int argc, char **argv, bool apart, struct pd_err *e)
{
    struct options o = {.far = {.who = {.role = LINK_BOX}, .budget = BUDGET}};
    int pair[2], ready = -1;
    if (fds_need_close(e) < 0 || read_options(argc, argv, &o, e) < 0 ||
        (apart && apart_begin(&ready, e) < 0) ||
        key_read(o.key_file, o.far.who.key, deadline_in(o.far.lease), e) < 0 ||
        listen_for_all(&o, e) < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make init's socket");

    o.far.init = pair[0];
    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "fork");
    if (pid == 0) {
        close(pair[1]);
        fd_done(&ready);
        if (apart)
            apart_be_silent();
        be_far(&o);
    }

    explicit_bzero(o.far.who.key, sizeof o.far.who.key);
    close(pair[0]);
    close(o.far.listener);
    fd_done(&o.far.dialers);
    if (start_caller(&o, pair[1], e) < 0)
        return -1;
    explicit_bzero(o.bucket.root, sizeof o.bucket.root);
    if (apart)
        apart_ready(ready);
    if (pair[1] != INIT_OWNER_FD && dup2(pair[1], INIT_OWNER_FD) < 0)
        return pd_fail_sys(e, "place init's socket");
    if (pair[1] != INIT_OWNER_FD)
        close(pair[1]);
    return box_main(o.count, o.words);
}

int main(int argc, char **argv)
{
    struct pd_err e;
    const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;
    if (getpid() != 1 && !strcmp(name ? name + 1 : argc > 0 ? argv[0] : "", "sudo"))
        return sudo_main(argc, argv);
    if (argc == 2 && !strcmp(argv[1], "join"))
        return join_main(JOIN_LINK);
    if (argc == 2 && !strcmp(argv[1], "key"))
        return join_main(JOIN_KEY);
    if (argc > 2 && !strcmp(argv[1], "stand-in"))
        return near_main(argc, argv);
    if (argc == 3 && !strcmp(argv[1], "put"))
        return put_self(argv[2], &e) < 0 ? complain(&e) : 0;
    if (argc > 1 && (!strcmp(argv[1], "run") || !strcmp(argv[1], "start")))
        return run(argc, argv, !strcmp(argv[1], "start"), &e) < 0 ? complain(&e) : 0;

    fputs("usage: paddock-box run|start key=FILE|-|env box=ID [lease=SECONDS] [listen=PORT] "
          "[call=HOST:PORT pin=KEY] [bucket=/DIR/PREFIX] [WORD...]\n"
          "       paddock-box join\n"
          "       paddock-box key\n"
          "       paddock-box put DIR\n",
          stderr);
    return 2;
}
