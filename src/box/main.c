/* paddock-box: what runs in a box on another machine, in any image.
 *
 *   paddock-box run key=FILE box=ID [lease=SECONDS] [words of init's]
 *
 * is the first process there. It reads the box's key and removes the file, then forks: the child is
 * the far end of the link and has the key, under a uid of its own; the first process forgets the
 * key and becomes init, whose owner the child is. When either ends, the box does.
 *
 *   paddock-box join
 *
 * is a connection to that far end, by its standard input and output. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "box/far.h"
#include "box/join.h"
#include "init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
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
            has_box = true;
        } else if (!strncmp(argv[i], "lease=", 6)) {
            if (parse_u64("lease", argv[i] + 6, 1, LEASE_MOST, &lease, e) < 0)
                return -1;
        } else if (o->count < WORDS_MOST) {
            o->words[o->count++] = argv[i];
        }
    }
    o->far.lease = lease * NS_PER_S;
    if (!o->key_file || !has_box)
        return pd_fail(e, PD_INVALID, "run needs key=FILE and box=ID");
    return 0;
}

/* The file is gone afterwards: whoever is in the box later finds no key. */
static int read_key(const char *path, uint8_t ret[LINK_KEY], struct pd_err *e)
{
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return pd_fail_sys(e, "open the key %s", path);
    ssize_t n = read(fd, ret, LINK_KEY);
    if (n != LINK_KEY)
        return pd_fail(e, PD_INVALID, "the key in %s must have %u bytes", path, LINK_KEY);
    if (unlink(path) < 0)
        return pd_fail_sys(e, "remove the key %s", path);
    return 0;
}

static int listen_for_joins(struct pd_err *e)
{
    struct sockaddr_un a;
    socklen_t len = join_address(&a);
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
    if (shed(&e) < 0 || far_run(&o->far, &e) < 0)
        _exit(complain(&e));
    _exit(0);
}

/* Returns only when it failed. */
static int run(int argc, char **argv, struct pd_err *e)
{
    struct options o = {.far = {.who = {.role = LINK_BOX}, .budget = BUDGET}};
    int pair[2];
    if (read_options(argc, argv, &o, e) < 0 || read_key(o.key_file, o.far.who.key, e) < 0)
        return -1;
    o.far.listener = listen_for_joins(e);
    if (o.far.listener < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make init's socket");

    o.far.init = pair[0];
    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "fork");
    if (pid == 0) {
        close(pair[1]);
        be_far(&o);
    }

    explicit_bzero(o.far.who.key, sizeof o.far.who.key);
    close(pair[0]);
    close(o.far.listener);
    if (pair[1] != INIT_OWNER_FD && dup2(pair[1], INIT_OWNER_FD) < 0)
        return pd_fail_sys(e, "place init's socket");
    if (pair[1] != INIT_OWNER_FD)
        close(pair[1]);
    return box_main(o.count, o.words);
}

int main(int argc, char **argv)
{
    struct pd_err e;
    if (argc == 2 && !strcmp(argv[1], "join"))
        return join_main();
    if (argc > 1 && !strcmp(argv[1], "run"))
        return run(argc, argv, &e) < 0 ? complain(&e) : 0;

    fputs("usage: paddock-box run key=FILE box=ID [lease=SECONDS] [WORD...]\n"
          "       paddock-box join\n",
          stderr);
    return 2;
}
