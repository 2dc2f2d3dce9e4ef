/* The table of commands, and how their ends get into it.
 *
 * It is an array without order that grows up to INIT_PROCESSES_MAX; the last row takes the place of
 * one that is removed, so pointers into it last until the next change. Reaping takes every child
 * that has ended, also orphans that pid 1 inherits: an end without a row is dropped. */
#include "init/init.h"

#include "init/runner.h"

#include "base/banned.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

struct process *process_find(struct init *in, struct wire_id id, uint64_t peer)
{
    for (unsigned i = 0; i < in->process_count; i++)
        if (in->processes[i].peer == peer && wire_id_equal(in->processes[i].id, id))
            return &in->processes[i];
    return NULL;
}

int process_reserve(struct init *in)
{
    if (in->process_count < in->process_room)
        return 0;

    unsigned room = in->process_room ? in->process_room * 2 : 8;
    struct process *grown =
        room > INIT_PROCESSES_MAX ? NULL : realloc(in->processes, room * sizeof *in->processes);
    if (!grown)
        return -1;
    in->processes = grown;
    in->process_room = room;
    return 0;
}

struct process *process_add(struct init *in, struct wire_id id, uint64_t peer, pid_t pid)
{
    if (process_reserve(in) < 0)
        return NULL;

    struct process *p = &in->processes[in->process_count++];
    *p = (struct process){.id = id, .peer = peer, .pid = pid, .end = {.pid = pid}};
    return p;
}

void process_remove(struct init *in, struct process *p)
{
    *p = in->processes[--in->process_count];
}

/* A file system keeps a few blocks for itself when it says ENOSPC: one in 256 counts as none. */
static int disk_is_full(void)
{
    struct statvfs fs;
    return statvfs("/", &fs) == 0 &&
           (fs.f_bavail <= fs.f_blocks / 256 || (fs.f_files && fs.f_favail == 0));
}

void processes_reap(struct init *in)
{
    int status;
    struct rusage usage;
    pid_t pid;

    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        runner_reaped(in, pid);
        for (unsigned i = 0; i < in->process_count; i++) {
            struct process *p = &in->processes[i];
            if ((p->holder ? p->holder : p->pid) != pid || p->exited)
                continue;

            p->exited = 1;
            p->end.exited = 1;
            p->end.status = status;
            p->end.disk_full = status != 0 && disk_is_full();
            p->end.max_rss = (uint64_t)usage.ru_maxrss * 1024;
            p->end.cpu_usec = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                              (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
            break;
        }
    }
}
