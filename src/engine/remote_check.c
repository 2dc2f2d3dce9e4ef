/* One look at a backend elsewhere, for people: `paddock backend check NAME`. First what the backend
 * says of itself, its credentials and its permissions; then one box is made, its link brought up,
 * and it is ended. Each step is a line "NAME VALUE"; the first that fails is a line "error TEXT",
 * and nothing stays behind. */
#include "engine/remote.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/far_box.h"
#include "engine/nursery.h"
#include "jail/init_image.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_PATIENCE (20 * NS_PER_S)
#define MAKE_PATIENCE (300 * NS_PER_S)
#define LINK_PATIENCE (30 * NS_PER_S)
#define LEASE         60u /* of a box that is left behind by a check that was killed */

_Static_assert(BOX_LENT_FD == BROKER_BOX_FD, "both are where paddock-box is");

struct trial {
    const struct broker_config *config;
    struct remote *remote;
    char instance[32];
    int process; /* of the watch */
};

static void tell_line(void *context, const char *name, const char *value)
{
    (void)context;
    printf("%s %s\n", name, value);
    fflush(stdout);
}

static void tell_time(const char *name, uint64_t since)
{
    char text[32];

    snprintf(text, sizeof text, "%llu ms", (unsigned long long)((clock_now() - since) / NS_PER_MS));
    tell_line(NULL, name, text);
}

/* The one that `paddock backend` has lent, which is static; a check that is started otherwise has
 * the one of its own build. */
static int open_program(struct pd_err *e)
{
    int seals = fcntl(BOX_LENT_FD, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_WRITE) ? fcntl(BOX_LENT_FD, F_DUPFD_CLOEXEC, 3)
                                                : box_image_open_file(e);
}

/* From nothing to a link that is up. */
static int make(struct trial *t, const struct spec *s, struct pd_err *e)
{
    struct remote_state made;
    struct remote_plan plan = {
        .instance = t->instance, .box = "check", .spec = s, .lease = t->config->lease};
    int control[2];
    uint64_t began = clock_now();

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0)
        return pd_fail_sys(e, "make a socket");
    auto_fd ours __attribute__((unused)) = control[0], theirs = control[1];
    auto_fd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    auto_fd program = open_program(e);
    if (program < 0)
        return -1;

    struct nursery nursery __attribute__((cleanup(nursery_done))) = {.sock = 0};
    struct far_box box = {
        .config = t->config, .nursery = &nursery, .control = theirs, .lock = null};
    plan.program = program;
    remote_name(plan.instance, plan.box, plan.name);
    box.secret.box = wire_id_new();
    random_bytes(box.secret.key, sizeof box.secret.key);
    wire_id_text(box.secret.box, plan.link);
    memcpy(plan.key, box.secret.key, sizeof plan.key);
    if (t->remote->kind->create(t->remote, &plan, &made, deadline_in(MAKE_PATIENCE), e) < 0)
        return -1;
    tell_time("made", began);

    began = clock_now();
    box.container = made.place;
    if (far_box_start(&box, &t->process, deadline_in(LINK_PATIENCE), e) < 0)
        return -1;
    tell_time("link", began);
    return 0;
}

static int try_one(struct trial *t, const char *image, struct pd_err *e)
{
    struct spec s = SPEC_DEFAULT;
    struct pd_err why;

    s.image = image;
    if (remote_check_spec(t->remote->kind, &s, e) < 0 ||
        (t->remote->kind->check_spec && t->remote->kind->check_spec(t->remote, &s, e) < 0))
        return -1;

    int made = make(t, &s, e);
    uint64_t began = clock_now();
    if (t->process >= 0)
        (void)syscall(SYS_pidfd_send_signal, t->process, SIGKILL, NULL, 0);
    int ended =
        t->remote->kind->end(t->remote, t->instance, "check", deadline_in(LOOK_PATIENCE), &why);
    if (made < 0)
        return -1;
    if (ended < 0)
        return pd_fail(e, why.code,
                       "the sandbox of this check was made and cannot be ended: %.160s", why.msg);
    tell_time("ended", began);
    return 0;
}

/* A state directory for one look. */
static void clear_state(const char *path)
{
    DIR *list = path[1] ? opendir(path) : NULL;

    if (!list)
        return;
    for (const struct dirent *entry; (entry = readdir(list));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(list), entry->d_name, 0);
    closedir(list);
    (void)rmdir(path);
}

int remote_check(const struct broker_config *given, const char *image)
{
    struct broker_config c = *given;
    struct trial t = {.config = &c, .process = -1};
    char state[] = "/tmp/paddock-check-XXXXXX";
    struct pd_err e;
    uint64_t id;

    (void)signal(SIGPIPE, SIG_IGN);
    random_bytes(&id, sizeof id);
    snprintf(t.instance, sizeof t.instance, "check%llx", (unsigned long long)id);
    c.instance = t.instance;
    c.lease = LEASE;
    c.state_dir = mkdtemp(state);
    if (!c.state_dir)
        c.state_dir = "/"; /* only some kinds keep something there, and say what is wrong */

    t.remote = remote_open(&c, &e);
    int r = t.remote
                ? t.remote->kind->check(t.remote, tell_line, NULL, deadline_in(LOOK_PATIENCE), &e)
                : -1;
    if (r == 0)
        r = try_one(&t, image, &e);
    fd_done(&t.process);
    remote_close(t.remote);
    clear_state(c.state_dir);
    if (r < 0)
        tell_line(NULL, "error", e.msg);
    return r < 0 ? 1 : 0;
}
