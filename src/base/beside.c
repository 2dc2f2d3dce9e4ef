/* Where this program is, the kernel tells: /proc/self/exe. */
#include "base/beside.h"

#include "base/banned.h"
#include "base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const places[] = {"", "../libexec/paddock/"};

void exec_beside(const char *name, const char **argv)
{
    char self[4096] = "", path[8200];
    ssize_t n = strchr(name, '/') ? 0 : readlink("/proc/self/exe", self, sizeof self - 1);
    int dir = 0;

    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        dir = slash ? (int)(slash - self + 1) : 0;
    }

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%.*s%s%s", dir, self, dir ? places[i] : "", name);
        argv[0] = path;
        execv(path, (char *const *)(uintptr_t)argv);
    }
}

int beside_find(const char *name, char *out, size_t size)
{
    char self[4096], path[8200], real[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return -1;
    self[n] = 0;

    const char *slash = strrchr(self, '/');
    int dir = slash ? (int)(slash - self + 1) : 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%.*s%s%s", dir, self, places[i], name);
        if (realpath(path, real) && access(real, X_OK) == 0 &&
            (size_t)snprintf(out, size, "%s", real) < size)
            return 0;
    }
    return -1;
}

/* In a directory with the sticky bit others may make files, but neither move nor replace ours. */
static bool only_we_change(const struct stat *st)
{
    bool open_to_others = st->st_mode & (S_IWGRP | S_IWOTH);
    bool sticky = S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX;

    return (st->st_uid == 0 || st->st_uid == geteuid()) && (!open_to_others || sticky);
}

int program_check(const char *path, struct pd_err *e)
{
    char real[PATH_MAX];
    struct stat st;

    if (path[0] != '/')
        return pd_fail(e, PD_INVALID, "'%.150s': use an absolute path", path);
    if (!realpath(path, real) || stat(real, &st) < 0)
        return pd_fail_sys(e, "'%.150s'", path);
    if (strcmp(path, real) != 0)
        return pd_fail(e, PD_INVALID, "'%.90s': use the path without links, %.90s", path, real);
    if (!S_ISREG(st.st_mode) || access(real, X_OK) < 0)
        return pd_fail(e, PD_INVALID, "'%.150s' is no program that can be started", path);

    for (char *end = real + strlen(real);;) {
        if (stat(real[0] ? real : "/", &st) < 0)
            return pd_fail_sys(e, "'%.150s'", real);
        if (!only_we_change(&st))
            return pd_fail(e, PD_DENIED,
                           "'%.90s' can be changed by others: %.90s must belong to root and be "
                           "writable for nobody else",
                           path, real[0] ? real : "/");
        if (end == real)
            return 0;
        end = strrchr(real, '/');
        *end = 0;
    }
}
