/* How this works: a process whose parent dies becomes a child of the nearest subreaper above. So
 * whoever kills its children, and again those that come to it, in the end has killed every
 * descendant, whatever sessions and groups they made. A process that forks and ends without pause
 * is a child of somebody at each moment, and the list of children is read faster than it forks.
 *
 * The list is /proc/thread-self/children; where the kernel has none, all of /proc is read for
 * processes whose parent this is. */
#include "init/tree.h"

#include "base/banned.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 5000000 /* before those that did not die yet are killed again */

/* Kills what one reading of the file lists. A number may be cut at the end of a piece. */
static void kill_listed(int list)
{
    char text[4096];
    ssize_t n;
    pid_t pid = 0;

    while ((n = read(list, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (pid > 1)
                kill(pid, SIGKILL);
            pid = 0;
        }
    if (pid > 1)
        kill(pid, SIGKILL);
}

/* The parent of a process, from its stat file; 0 when it is gone. */
static pid_t parent_of(int proc, const char *name)
{
    char path[64], text[1500];
    snprintf(path, sizeof path, "%.20s/stat", name);
    if (fd_read_file(proc, path, text, sizeof text) <= 0)
        return 0;

    const char *end = strrchr(text, ')'); /* the name before it may hold anything */
    return end && strlen(end) > 4 ? (pid_t)strtol(end + 4, NULL, 10) : 0;
}

static bool kill_by_parent(void)
{
    DIR *proc = opendir("/proc");
    if (!proc)
        return false;

    pid_t self = getpid();
    for (struct dirent *d; (d = readdir(proc));)
        if (d->d_name[0] >= '1' && d->d_name[0] <= '9' && parent_of(dirfd(proc), d->d_name) == self)
            kill((pid_t)strtol(d->d_name, NULL, 10), SIGKILL);
    closedir(proc);
    return true;
}

bool tree_kill_children(void)
{
    auto_fd list = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
    if (list < 0)
        return kill_by_parent();

    kill_listed(list);
    return true;
}

int tree_end(deadline d)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);

    for (;;) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0 && errno == ECHILD)
            return 0;
        if (deadline_passed(d) || !tree_kill_children())
            return -1;
        (void)sigtimedwait(&child, NULL, &(struct timespec){0, PAUSE_NS});
    }
}
