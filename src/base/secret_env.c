/* How this works: the file has NAME=VALUE of each, with the NUL behind it, as an environment has
 * them. It has no name in any file system, and ends with the last descriptor of it. */
#include "base/secret_env.h"

#include "base/banned.h"
#include "base/fd.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* All strings of an environment together have no more. */
#define SEALED_MAX (8u << 20)

static const struct {
    const char *name, *backend; /* who looks for it */
} secrets[] = {
    {"AWS_ACCESS_KEY_ID", "fargate"}, {"AWS_SECRET_ACCESS_KEY", "fargate"},
    {"AWS_SESSION_TOKEN", "fargate"}, {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "fargate"},
    {"E2B_API_KEY", "e2b"},           {"DAYTONA_API_KEY", "daytona"},
};
#define SECRETS (sizeof secrets / sizeof *secrets)

void secret_env_forget(void)
{
    for (size_t i = 0; i < SECRETS; i++) {
        char *value = getenv(secrets[i].name);
        if (value)
            explicit_bzero(value, strlen(value));
        unsetenv(secrets[i].name);
    }
}

static int put_all(int fd)
{
    int failed = 0;

    for (size_t i = 0; i < SECRETS && !failed; i++) {
        const char *name = secrets[i].name, *value = getenv(name);
        if (!value || !value[0])
            continue;
        failed = fd_write_all(fd, name, strlen(name));
        if (!failed)
            failed = fd_write_all(fd, "=", 1);
        if (!failed)
            failed = fd_write_all(fd, value, strlen(value) + 1);
    }
    return failed;
}

int secret_env_seal(void)
{
    bool any = false;
    for (size_t i = 0; i < SECRETS; i++) {
        const char *value = getenv(secrets[i].name);
        any |= value && value[0];
    }

    auto_fd fd = any ? memfd_create("credentials", MFD_CLOEXEC) : -1;
    int failed = !any ? -ENODATA : fd < 0 ? -errno : put_all(fd);
    secret_env_forget();
    return failed ? failed : fd_take(&fd);
}

static bool is_of(const char *name, size_t len, const char *backend)
{
    for (size_t i = 0; i < SECRETS; i++)
        if (!strcmp(secrets[i].backend, backend) && strlen(secrets[i].name) == len &&
            !memcmp(secrets[i].name, name, len))
            return true;
    return false;
}

static void set_one(char *entry, const char *backend)
{
    char *equals = strchr(entry, '=');

    if (!equals || !is_of(entry, (size_t)(equals - entry), backend))
        return;
    *equals = 0;
    setenv(entry, equals + 1, 1);
}

void secret_env_unseal(int fd, const char *backend)
{
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < 1 || st.st_size > SEALED_MAX)
        return;
    size_t len = (size_t)st.st_size;
    char *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (all == MAP_FAILED)
        return;

    for (size_t at = 0; at < len;) {
        size_t n = strnlen(all + at, len - at);
        if (at + n == len)
            break; /* its end was not written */
        set_one(all + at, backend);
        at += n + 1;
    }
    explicit_bzero(all, len);
    munmap(all, len);
}
