/* How strangers' bytes are read: by the program paddock-remote in a jail that has nothing but that
 * program, its libraries and a pipe. `paddock run` is started for it, so that reading an image is
 * held by the same walls as running one. */
#include "cli/image.h"

#include "base/banned.h"
#include "base/beside.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define READER  "/image-reader"
#define WORDS   24
#define TIMEOUT "1h"

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

int image_reader_start(struct image_reader *r, const char *const *words, int from, struct pd_err *e)
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
        dup2(from, 0);
        dup2(out_far, 1);
        dup2(reason_far, 2);
        become_reader(program, words);
    }

    (void)fcntl(out_near, F_SETPIPE_SZ, 1 << 20);
    r->pid = pid;
    r->out = fd_take(&out_near);
    r->reason = fd_take(&reason_near);
    return 0;
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

    text[have] = 0;
    text[strcspn(text, "\n")] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return pd_fail(e, PD_INVALID, "%s", text[0] ? text : "the reader of images was ended");
}
