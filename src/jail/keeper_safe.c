/* What a keeper of boxes elsewhere leaves to the next one. Such a box needs nothing of its keeper
 * to go on; what the next keeper has to have to be its keeper is put into a safe (safe.h), a
 * process that outlives this one. It is started with the first such box, and told of each and of
 * all that clients stash, before anybody hears that it is there.
 *
 *   found    by its socket beside the keeper's, at the keeper's start: the next keeper has the same
 *            name to the engine, higher epochs, and the same boxes
 *   lost     another one is started and told everything; then it takes the place of the one before.
 *            That is done before anybody hears of what the one before was not told
 *   hung     lost, and killed when another has its place: it would keep open what the keeper closes
 *   alone    for the length of a lease; then it closes what it has, and the boxes end */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "base/secret_env.h"
#include "jail/safe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define TELL_PATIENCE NS_PER_S
#define FIND_PATIENCE (2 * NS_PER_S)
#define LIVE_PATIENCE (NS_PER_S / 4)
/* Between two records: who has said one is a safe that is free. */
#define NEXT_PATIENCE (5 * NS_PER_S)
#define REST_PATIENCE (10 * NS_PER_S) /* for one that has taken this keeper, and broken off */
#define REST_TRIES    4u
#define LEASE         900u /* s, as a broker has it when nobody says otherwise */
#define NAMES_APART   (UINT64_C(1) << 32)

/* A socket beside the keeper's. false where the path would be too long: then there is none. */
static bool address_beside(const struct keeper *k, const char *ending, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    return k->config->socket_path && k->kind->may_be_far &&
           (size_t)snprintf(ret->sun_path, sizeof ret->sun_path, "%s.%s", k->config->socket_path,
                            ending) < sizeof ret->sun_path;
}

/* The safe's place. */
static bool own_address(const struct keeper *k, struct sockaddr_un *ret)
{
    return address_beside(k, "safe", ret);
}

/* ---- telling it ---- */

static void let_go(struct keeper *k)
{
    if (k->safe >= 0)
        epoll_ctl(k->epoll, EPOLL_CTL_DEL, k->safe, NULL);
    fd_done(&k->safe);
}

/* One that was told everything there was, as far as anybody knows. */
static bool hears(const struct keeper *k)
{
    struct pollfd p = {.fd = k->safe};
    return poll(&p, 1, 0) == 0; /* it says nothing but that it is gone */
}

/* One that does not hear for that long is no safe: hears() is false from then on. */
static void tell(struct keeper *k, enum wire_type type, struct wire_id id, const struct msg_keep *m,
                 const int *fds, unsigned count)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = (uint16_t)type, .id = id};

    if (k->safe < 0)
        return;
    msg_keep_encode(&out, m);
    if (wire_send(k->safe, &head, &out, fds, count, deadline_in(TELL_PATIENCE)) < 0)
        shutdown(k->safe, SHUT_RDWR);
}

static void tell_self(struct keeper *k)
{
    struct msg_keep m = {
        .kind = KEEP_SELF, .key = "", .name = k->instance, .root = "", .number = k->epoch};
    tell(k, WIRE_KEEP, (struct wire_id){.bytes = {0}}, &m, NULL, 0);
}

static void tell_box(struct keeper *k, const struct kjail *j)
{
    struct msg_keep m = {.kind = KEEP_BOX,
                         .key = "",
                         .name = j->name,
                         .root = j->root_name ? j->root_name : "",
                         .rung = j->rung,
                         .on_image = j->on_image,
                         .pid = j->pid};
    int fds[2] = {j->pidfd, j->control};
    tell(k, WIRE_KEEP, j->id, &m, fds, j->control >= 0 ? 2 : 1);
}

static void tell_stash(struct keeper *k, const struct stash *s)
{
    struct msg_keep m = {.kind = KEEP_STASH, .key = s->key, .name = "", .root = ""};
    tell(k, WIRE_KEEP, (struct wire_id){.bytes = {0}}, &m, s->fds, s->fd_count);
}

/* ---- starting one ---- */

/* How long it may be alone: as long as a box waits for this machine. */
static uint64_t lease(const struct keeper *k)
{
    uint64_t seconds = LEASE;
    struct pd_err e;

    for (const char *const *o = k->config->options; o && o[0] && o[1]; o++)
        if (!strcmp(o[0], "--lease"))
            (void)parse_u64(o[0], o[1], 1, UINT32_MAX, &seconds, &e);
    return seconds * NS_PER_S;
}

/* It is no keeper: whoever looks for one by the words it was started with does not find this. The
 * program's words lie in a row. */
static void change_words(const char *name)
{
    char now[4096];
    ssize_t len = fd_read_file(AT_FDCWD, "/proc/self/cmdline", now, sizeof now);
    char *words = program_invocation_name;

    if (len <= (ssize_t)strlen(name) || memcmp(now, words, strlen(words) + 1) != 0)
        return;
    memset(words, 0, (size_t)len);
    memcpy(words, name, strlen(name));
}

static _Noreturn void become_safe(struct keeper *k, struct safe_place place, int keeper)
{
    uint64_t patience = lease(k);
    char words[128];
    sigset_t none;

    /* Without what the keeper has, at once: a listener of a dead one would take calls. And out of
     * reach of whatever ends it. */
    int high[2] = {fcntl(place.listener, F_DUPFD, 5), fcntl(keeper, F_DUPFD, 5)};
    if (dup3(high[0], 3, O_CLOEXEC) < 0 || dup3(high[1], 4, O_CLOEXEC) < 0)
        _exit(1);
    syscall(SYS_close_range, 5, ~0u, 0);
    setsid();
    sigemptyset(&none);
    prctl(PR_SET_NAME, "paddock-safe", 0, 0, 0);
    snprintf(words, sizeof words, "paddock-safe:%s", k->config->socket_path);
    change_words(words);
    secret_env_forget();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        if (dup2(null, i) < 0)
            _exit(1);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    place.listener = 3;
    safe_main(&place, 4, patience);
}

/* Not at its place yet: the one before has that until this one was told everything. Nobody answers
 * here: safes are one after the other, as keepers are. Writes the file's number. */
static int listen_beside(const struct keeper *k, ino_t *ret_number)
{
    struct stat st;
    struct sockaddr_un a;
    if (!address_beside(k, "next", &a))
        return -1;

    auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    (void)unlink(a.sun_path);
    mode_t old = umask(0177);
    int bound = bind(fd, (struct sockaddr *)&a, sizeof a);
    umask(old);
    if (bound < 0 || lstat(a.sun_path, &st) < 0 || listen(fd, 4) < 0)
        return -1;
    *ret_number = st.st_ino;
    return fd_take(&fd);
}

/* Writes a pidfd of it; -1 where there is none to be had. */
static int start(struct keeper *k, int *ret_process)
{
    int pair[2];
    struct sockaddr_un a;
    ino_t number;
    auto_fd listener = own_address(k, &a) ? listen_beside(k, &number) : -1;

    if (listener < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    auto_fd ours = pair[0], theirs = pair[1];
    pid_t pid = fork();
    if (pid < 0)
        return -1;
    if (pid == 0)
        become_safe(k, (struct safe_place){a.sun_path, number, listener}, theirs);

    fd_done(&theirs);
    if (keeper_watch(k, ours, &k->safe_source) < 0)
        return -1;
    *ret_process = (int)syscall(SYS_pidfd_open, pid, 0);
    k->safe = fd_take(&ours);
    return 0;
}

static bool is_for_the_next(const struct kjail *j)
{
    return j->is_far && j->keep && j->pidfd >= 0;
}

/* It is found from now on, and the one before is not any more. */
static bool take_place(const struct keeper *k)
{
    struct sockaddr_un from, to;
    return address_beside(k, "next", &from) && own_address(k, &to) &&
           rename(from.sun_path, to.sun_path) == 0;
}

static void tell_everything(struct keeper *k)
{
    tell_self(k);
    for (unsigned b = 0; b < BUCKETS; b++) {
        for (const struct kjail *j = k->jails[b]; j; j = j->next)
            if (is_for_the_next(j))
                tell_box(k, j);
        for (const struct stash *s = k->stashes[b]; s; s = s->next)
            tell_stash(k, s);
    }
}

/* It may only hang, with copies of what this keeper has. */
static void kill_process(int *pidfd)
{
    if (*pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, *pidfd, SIGKILL, NULL, 0);
    fd_done(pidfd);
}

/* Another one in the place of the one that there is, if any. One that has not heard everything
 * takes nobody's place: its end is seen by epoll, and the next is begun. */
static void begin(struct keeper *k)
{
    auto_fd process = -1;

    let_go(k);
    if (start(k, &process) < 0)
        return;
    tell_everything(k);
    if (!hears(k)) {
        kill_process(&process);
        return;
    }

    if (take_place(k))
        kill_process(&k->safe_process);
    fd_done(&k->safe_process);
    k->safe_process = fd_take(&process);
}

/* Somebody is answered next who relies on it that the next keeper knows. Once: when another one
 * does not hear either, the keeper goes on. */
static void see_that_it_heard(struct keeper *k)
{
    if (k->safe >= 0 && !hears(k) && !k->stopping && k->jail_count)
        begin(k);
}

void safe_tell_self(struct keeper *k)
{
    tell_self(k);
    see_that_it_heard(k);
}

void safe_tell_jail(struct keeper *k, const struct kjail *j)
{
    if (!is_for_the_next(j))
        return;
    if (k->safe < 0)
        begin(k);
    else
        tell_box(k, j);
    see_that_it_heard(k);
}

void safe_tell_stash(struct keeper *k, const struct stash *s)
{
    tell_stash(k, s);
    see_that_it_heard(k);
}

void safe_drop_stash(struct keeper *k, const char *key)
{
    struct msg_keep m = {.kind = KEEP_STASH, .key = key, .name = "", .root = ""};
    tell(k, WIRE_DROP, (struct wire_id){.bytes = {0}}, &m, NULL, 0);
    see_that_it_heard(k);
}

void safe_drop_jail(struct keeper *k, const struct kjail *j)
{
    struct msg_keep m = {.kind = KEEP_BOX, .key = "", .name = j->name, .root = ""};
    if (j->is_far)
        tell(k, WIRE_DROP, j->id, &m, NULL, 0);
}

void safe_heard(struct keeper *k)
{
    struct pd_err e;

    frame_reset(&k->in);
    if (wire_recv(k->safe, &k->in, 0, &e) < 0 && e.code == PD_TIMEOUT)
        return;
    if (!k->stopping && k->jail_count) {
        begin(k);
        return;
    }

    let_go(k);
    if (!k->jail_count)
        kill_process(&k->safe_process);
}

void safe_end(struct keeper *k)
{
    struct sockaddr_un a;

    if (k->safe >= 0 && !k->jail_count && own_address(k, &a))
        (void)unlink(a.sun_path);
    /* Of a keeper that was killed while it told another safe. */
    if (k->safe >= 0 && !k->jail_count && address_beside(k, "next", &a))
        (void)unlink(a.sun_path);
    let_go(k);
    fd_done(&k->safe_process); /* it outlives the keeper */
}

/* ---- taking over ---- */

static void take_self(struct keeper *k, const struct msg_keep *m)
{
    snprintf(k->instance, sizeof k->instance, "%s", m->name);
    k->epoch = m->number;
}

/* Names of boxes that the last keeper was making, or has not told of, are not given again. */
static void pass_name(struct keeper *k, const char *name)
{
    uint64_t number = strtoull(name + (name[0] == 'j'), NULL, 10);
    if (number > k->next_name)
        k->next_name = number;
}

/* It may have been told by one that then broke off. */
static void take_box(struct keeper *k, struct frame *f, const struct msg_keep *m)
{
    struct kjail *j = jail_find(k, f->head.id) ? NULL : jail_new(k, f->head.id);
    if (!j)
        return;

    snprintf(j->name, sizeof j->name, "%s", m->name);
    if (m->root[0])
        j->root_name = strdup(m->root);
    j->rung = m->rung;
    j->on_image = m->on_image;
    j->keep = 1;
    j->is_far = true;
    j->pidfd = frame_take_fd(f, 0);
    j->control = frame_take_fd(f, 1);
    j->devpts = fcntl(k->null, F_DUPFD_CLOEXEC, 3);
    j->state = JAIL_RUNNING;
    jail_set_pid(k, j, m->pid);
    pass_name(k, m->name);
    if (jail_watch_init(k, j) < 0)
        jail_set_dead(k, j); /* it is swept, and nobody is told that it is there */
}

static void take_record(struct keeper *k, struct frame *f)
{
    struct msg_keep m;
    if (msg_keep_decode(&f->payload, &m, NULL) < 0)
        return;

    if (m.kind == KEEP_SELF)
        take_self(k, &m);
    else if (m.kind == KEEP_BOX)
        take_box(k, f, &m);
    else if (!stash_find(k, m.key))
        (void)stash_add(k, m.key, f);
}

/* Ours if it is our user's: others cannot make a socket beside ours, or have another uid. */
static bool is_ours(int sock)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

/* A keeper that lives has its safe for itself, which answers nobody else. */
static bool keeper_lives(const struct keeper *k)
{
    auto_fd keeper = wire_connect_within(k->config->socket_path, LIVE_PATIENCE);
    return keeper >= 0 || errno == EAGAIN;
}

enum found {
    FOUND_NONE, /* it has said nothing */
    FOUND_PART,
    FOUND_ALL
};

/* The patience is for the first of them. */
static enum found take_records(struct keeper *k, int sock, uint64_t patience)
{
    enum found found = FOUND_NONE;
    struct pd_err e;

    for (;;) {
        frame_reset(&k->in);
        if (wire_recv(sock, &k->in, deadline_in(found ? NEXT_PATIENCE : patience), &e) <= 0)
            break;
        found = k->in.head.type == WIRE_DONE ? FOUND_ALL : FOUND_PART;
        if (found == FOUND_ALL)
            break;
        take_record(k, &k->in);
    }
    frame_reset(&k->in);
    return found;
}

/* Of one that has taken this keeper and has not said everything: the rest would end with it as soon
 * as another has its place. It is asked from the beginning. */
static enum found ask_again(struct keeper *k, const char *path, int *sock, enum found found)
{
    deadline until = deadline_in(REST_PATIENCE);

    for (unsigned i = 0; i < REST_TRIES && found != FOUND_ALL; i++) {
        uint64_t now = clock_now(), patience = now < until ? until - now : 0;
        if (patience < NS_PER_MS)
            break;
        fd_done(sock);
        *sock = wire_connect_within(path, patience);
        if (*sock < 0 || !is_ours(*sock))
            break;

        enum found heard = take_records(k, *sock, patience);
        found = heard > found ? heard : found;
    }
    return found;
}

void safe_find(struct keeper *k)
{
    struct sockaddr_un a;
    auto_fd sock = -1;
    enum found found;
    bool lives;
    if (!own_address(k, &a))
        return;

    /* Of a keeper that was killed while it started a safe somebody answers for a moment: the safe,
     * which has not closed its listener yet. Silence behind that is no answer, until that moment is
     * certainly over. */
    deadline until = deadline_in(FIND_PATIENCE);
    do {
        lives = keeper_lives(k);
        uint64_t patience = lives ? LIVE_PATIENCE : FIND_PATIENCE;
        fd_done(&sock);
        sock = wire_connect_within(a.sun_path, patience);
        if (sock >= 0 && !is_ours(sock))
            return;
        found = sock < 0 ? FOUND_NONE : take_records(k, sock, patience);
    } while (found == FOUND_NONE && lives &&
             (!keeper_lives(k) || (sock >= 0 && !deadline_passed(until))));
    if (sock < 0)
        return;

    /* One that has said nothing beside a keeper that lives is that one's. */
    if (found == FOUND_PART || !lives)
        found = ask_again(k, a.sun_path, &sock, found);
    k->next_name += NAMES_APART;
    if (found == FOUND_ALL && keeper_watch(k, sock, &k->safe_source) == 0)
        k->safe = fd_take(&sock);
    else if (k->jail_count)
        begin(k);
}
