/* The address of an engine is the operator's word, but it becomes a URL: what is no host and no
 * port in it is refused. */
#include "engine/docker_place.h"

#include "base/banned.h"
#include "base/err.h"

#include <stdio.h>
#include <string.h>

static bool is_given(const char *text)
{
    return text && text[0];
}

/* "HOST", "HOST:PORT", "[ADDRESS]:PORT". */
static int check_address(const char *host, const char *address, struct pd_err *e)
{
    size_t len = strlen(address);

    if (len > 1 && address[len - 1] == '/')
        len--;
    if (!len || len > 255 ||
        strspn(address, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]") <
            len)
        return pd_fail(e, PD_INVALID, "docker_host '%.100s': use unix://PATH or tcp://HOST:PORT",
                       host);
    return (int)len;
}

static bool is_loopback(const char *address)
{
    size_t number = strspn(address, "0123456789.");
    return (!strncmp(address, "127.", 4) && (!address[number] || address[number] == ':')) ||
           !strncmp(address, "localhost:", 10) || !strcmp(address, "localhost") ||
           !strncmp(address, "[::1]", 5);
}

static int put_path(char out[DOCKER_PATH_MAX], const char *dir, const char *more, const char *name,
                    struct pd_err *e)
{
    if ((size_t)snprintf(out, DOCKER_PATH_MAX, "%s%s%s", dir, more, name) < DOCKER_PATH_MAX)
        return 0;
    return pd_fail(e, PD_INVALID, "docker_cert_path: longer than %u bytes", DOCKER_PATH_MAX - 1);
}

/* 1 when there are certificates, 0 when none are meant. */
static int find_certificates(const struct docker_words *w, struct docker_place *p, struct pd_err *e)
{
    const char *dir = w->cert_path, *more = "/";

    if (!is_given(dir) && is_given(w->tls_verify) && is_given(w->home)) {
        dir = w->home;
        more = "/.docker/";
    }
    if (!is_given(dir))
        return 0;
    if (put_path(p->ca, dir, more, "ca.pem", e) < 0 ||
        put_path(p->cert, dir, more, "cert.pem", e) < 0 ||
        put_path(p->key, dir, more, "key.pem", e) < 0)
        return -1;
    return 1;
}

int docker_place_read(const struct docker_words *w, struct docker_place *ret, struct pd_err *e)
{
    struct docker_place p = {.socket = ""};
    const char *host = w->host ? w->host : "", *address = strstr(host, "://");

    if (!strncmp(host, "unix://", 7)) {
        if (host[7] != '/' || strlen(host + 7) >= sizeof p.socket)
            return pd_fail(e, PD_INVALID, "docker_host '%.100s': use unix:// and an absolute path",
                           host);
        snprintf(p.socket, sizeof p.socket, "%s", host + 7);
        *ret = p;
        return 0;
    }

    bool tcp = !strncmp(host, "tcp://", 6), tls = !strncmp(host, "https://", 8);
    if (!address || (!tcp && !tls))
        return pd_fail(e, PD_INVALID, "docker_host '%.100s': use unix://PATH or tcp://HOST:PORT",
                       host);
    address += 3;
    int len = check_address(host, address, e);
    int certificates = len < 0 ? -1 : find_certificates(w, &p, e);
    if (certificates < 0)
        return -1;
    if (tcp && !certificates && !is_loopback(address))
        return pd_fail(e, PD_INVALID,
                       "docker_host '%.100s' without TLS: whoever reaches that port is root there. "
                       "Set docker_cert_path to a directory with ca.pem, cert.pem and key.pem",
                       host);

    snprintf(p.base, sizeof p.base, "%s%.*s", tls || certificates ? "https://" : "http://", len,
             address);
    *ret = p;
    return 0;
}

bool docker_place_is_far(const struct docker_place *p)
{
    return !p->socket[0];
}
