/* The two programs that images are brought in by. One fetches, as nobody, with the network. How
 * strangers' bytes are read: by the program paddock-remote in a jail that has nothing but that
 * program, its libraries and a pipe. `paddock run` is started for it, so that reading an image is
 * held by the same walls as running one. */
#include "cli/image.h"

#include "base/banned.h"
#include "base/beside.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define READER  "/image-reader"
#define WORDS   24
#define TIMEOUT "1h"
/* Of the puller: engine/registry.h. */
#define AUTH_FD     3
#define CODE_STATUS 64

static _Noreturn void become_reader(const char *program, const char *const *words)
{
    char bind[PATH_MAX + 32];
    const char *argv[WORDS] = {"paddock", "run", "--timeout", TIMEOUT, "--memory", "512M",
                               "--bind",  bind,  "--",        READER,  "image"};
    size_t n = 11;

    snprintf(bind, sizeof bind, "%s:" READER, program);
    for (size_t i = 0; words[i] && n + 1 < WORDS; i++)
        argv[n++] = words[i];
    argv[n] = NULL;
    unsetenv("PADDOCK_KEEPER");
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* Started with nothing but its words: it becomes nobody itself. */
static _Noreturn void become_puller(const char *program, const char *const *words, int auth)
{
    const char *argv[WORDS] = {"paddock-remote"};
    size_t n = 1;

    for (size_t i = 0; words[i] && n + 1 < WORDS; i++)
        argv[n++] = words[i];
    argv[n] = NULL;
    if (auth == AUTH_FD)
        fcntl(auth, F_SETFD, 0);
    else if (auth >= 0)
        dup2(auth, AUTH_FD);
    else
        close(AUTH_FD);
    execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* `in_jail`: the reader; otherwise the puller, which gets `from` as its file with credentials. */
static int start(struct image_reader *r, const char *const *words, int from, bool in_jail,
                 struct pd_err *e)
{
    char program[PATH_MAX];
    int out[2], reason[2];

    if (beside_find("paddock-remote", program, sizeof program) < 0)
        return pd_fail(e, PD_NOT_FOUND,
                       "images need the program paddock-remote beside this one: make build");
    if (pipe2(out, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd out_near = out[0], out_far = out[1];
    if (pipe2(reason, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");
    auto_fd reason_near = reason[0], reason_far = reason[1];

    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "start the reader of images");
    if (pid == 0) {
        auto_fd none = in_jail ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC);
        dup2(in_jail ? from : none, 0);
        dup2(out_far, 1);
        dup2(reason_far, 2);
        if (in_jail)
            become_reader(program, words);
        become_puller(program, words, from);
    }

    (void)fcntl(out_near, F_SETPIPE_SZ, 1 << 20);
    r->pid = pid;
    r->is_puller = !in_jail;
    r->out = fd_take(&out_near);
    r->reason = fd_take(&reason_near);
    return 0;
}

int image_reader_start(struct image_reader *r, const char *const *words, int from, struct pd_err *e)
{
    return start(r, words, from, true, e);
}

int image_puller_start(struct image_reader *r, const char *const *words, int auth, struct pd_err *e)
{
    return start(r, words, auth, false, e);
}

int image_reader_read(struct image_reader *r, struct buf *out, struct pd_err *e)
{
    ssize_t n = 1;

    while (n) {
        uint8_t *to = buf_reserve(out, 65536);
        n = to ? read(r->out, to, 65536) : 0;
        if (n < 0 && errno != EINTR)
            break;
        out->len += n > 0 ? (size_t)n : 0;
    }
    return image_reader_finish(r, e);
}

int image_plan_next(const struct buf *plan, size_t *at, struct image_record *ret, struct pd_err *e)
{
    uint32_t len;

    if (*at == plan->len)
        return 0;
    if (plan->len - *at < sizeof len)
        return pd_fail(e, PD_PROTOCOL, "the reader of images wrote half a record");
    memcpy(&len, plan->data + *at, sizeof len);
    *at += sizeof len;
    if (len > plan->len - *at)
        return pd_fail(e, PD_PROTOCOL, "the reader of images wrote half a record");
    if (image_record_decode(plan->data + *at, len, ret, e) < 0)
        return -1;
    *at += len;
    return 1;
}

int image_reader_finish(struct image_reader *r, struct pd_err *e)
{
    char text[200];
    size_t have = 0;
    ssize_t n;
    int status = 0;

    /* It may still write: nobody reads on, so that ends it. */
    fd_done(&r->out);
    while (have < sizeof text - 1 &&
           (n = read(r->reason, text + have, sizeof text - 1 - have)) != 0)
        if (n > 0)
            have += (size_t)n;
        else if (errno != EINTR)
            break;
    fd_done(&r->reason);
    while (waitpid(r->pid, &status, 0) < 0 && errno == EINTR)
        ;

    /* What a program in a jail says of its failure is a text and no more. */
    int code = WIFEXITED(status) && r->is_puller ? WEXITSTATUS(status) - CODE_STATUS : 0;
    text[have] = 0;
    text[strcspn(text, "\n")] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return pd_fail(e, code > 0 && code < PD_CODE_COUNT ? (enum pd_code)code : PD_INVALID, "%s",
                   text[0] ? text : "the reader of images was ended");
}
