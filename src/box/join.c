/* How this works: two directions, each with a buffer of its own that is filled when it is empty and
 * emptied when it can be, so that neither waits for the other. The bytes are not looked at. */
#include "box/join.h"

#include "base/banned.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define TRIES  200
#define TRY_MS 10

struct way {
    int from, to; /* from: -1 when nothing more comes */
    uint8_t data[65536];
    size_t at, len;
};

socklen_t join_address(enum join_what what, struct sockaddr_un *ret)
{
    const char *name = what == JOIN_KEY ? "paddock-key" : "paddock-link";

    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

int join_connect(void)
{
    struct sockaddr_un a;
    socklen_t len = join_address(JOIN_LINK, &a);
    auto_fd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    return fd >= 0 && connect(fd, (struct sockaddr *)&a, len) == 0 ? fd_take(&fd) : -1;
}

static bool passes(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* false when this direction is over. */
static bool move(struct way *w, short in, short out)
{
    if (w->len == 0 && in) {
        ssize_t n = read(w->from, w->data, sizeof w->data);
        if (n <= 0)
            return passes(n);
        w->at = 0;
        w->len = (size_t)n;
    } else if (w->len && out) {
        ssize_t n = write(w->to, w->data + w->at, w->len);
        if (n < 0)
            return passes(n);
        w->at += (size_t)n;
        w->len -= (size_t)n;
    }
    return true;
}

/* A box that has just begun does not listen yet. */
static int connect_soon(int sock, const struct sockaddr_un *a, socklen_t len)
{
    for (int tries = 0;; tries++) {
        if (connect(sock, (const struct sockaddr *)a, len) == 0)
            return 0;
        if (errno != ECONNREFUSED || tries == TRIES)
            return -1;
        poll(NULL, 0, TRY_MS);
    }
}

int join_main(enum join_what what)
{
    static struct way ways[2];
    struct sockaddr_un a;
    socklen_t len = join_address(what, &a);
    auto_fd sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0 || connect_soon(sock, &a, len) < 0) {
        static const char words[] = "paddock-box: nobody listens in this box\n";
        (void)!write(2, words, sizeof words - 1);
        return 1;
    }

    ways[0] = (struct way){.from = 0, .to = sock};
    ways[1] = (struct way){.from = sock, .to = 1};
    for (bool lives = true; lives;) {
        struct pollfd p[4];
        for (int i = 0; i < 2; i++) {
            bool full = ways[i].len > 0;
            p[2 * i] = (struct pollfd){.fd = full ? -1 : ways[i].from, .events = POLLIN};
            p[2 * i + 1] = (struct pollfd){.fd = full ? ways[i].to : -1, .events = POLLOUT};
        }
        if (poll(p, 4, -1) < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < 2; i++) {
            if (move(&ways[i], p[2 * i].revents, p[2 * i + 1].revents))
                continue;
            /* Behind a key an answer comes. */
            lives = what == JOIN_KEY && i == 0;
            ways[i].from = -1;
            if (!lives)
                break;
        }
    }
    return 0;
}
