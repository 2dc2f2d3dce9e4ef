/* The key of a box's link. A file is gone once it was read: whoever is in the box later finds no
 * key; so is a variable, out of the place in memory where the kernel shows it. At the socket the
 * first 32 bytes count, and there is no socket afterwards; nothing of the box's own runs before
 * that. */
#include "box/key.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "box/join.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define SPEAKER_PATIENCE (5 * NS_PER_S)

static int read_file(const char *path, uint8_t ret[LINK_KEY], struct pd_err *e)
{
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return pd_fail_sys(e, "open the key %s", path);
    ssize_t n = read(fd, ret, LINK_KEY);
    if (n != LINK_KEY)
        return pd_fail(e, PD_INVALID, "the key in %s must have %u bytes", path, LINK_KEY);
    if (unlink(path) < 0)
        return pd_fail_sys(e, "remove the key %s", path);
    return 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* It is overwritten where it stands: /proc/PID/environ shows that place, and no command gets it. */
int key_read_variable(const char *variable, uint8_t ret[LINK_KEY], struct pd_err *e)
{
    char *text = getenv(variable);
    size_t len = text ? strlen(text) : 0;
    bool good = len == 2 * (size_t)LINK_KEY;

    for (size_t i = 0; good && i < LINK_KEY; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        if (good)
            ret[i] = (uint8_t)(high << 4 | low);
    }
    if (text)
        explicit_bzero(text, len);
    unsetenv(variable);
    return good ? 0
                : pd_fail(e, PD_INVALID, "the variable %s must have %u hexadecimal digits",
                          variable, 2 * LINK_KEY);
}

/* Waits until the descriptor can be read. False when the time is over. */
static bool can_read(int fd, deadline t)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = poll(&p, 1, deadline_poll_ms(t));
        if (n >= 0 || errno != EINTR)
            return n > 0;
    }
}

/* The whole key, and the answer that it came. One who says less is left. */
static bool hear(int speaker, uint8_t ret[LINK_KEY])
{
    deadline t = deadline_in(SPEAKER_PATIENCE);
    uint8_t key[LINK_KEY];
    size_t have = 0;

    while (have < sizeof key) {
        ssize_t n = can_read(speaker, t) ? read(speaker, key + have, sizeof key - have) : -1;
        if (n <= 0)
            return false;
        have += (size_t)n;
    }

    memcpy(ret, key, sizeof key);
    explicit_bzero(key, sizeof key);
    return send(speaker, JOIN_KEY_HEARD, sizeof JOIN_KEY_HEARD - 1, MSG_NOSIGNAL) > 0;
}

int key_read(const char *path, uint8_t ret[LINK_KEY], deadline t, struct pd_err *e)
{
    struct sockaddr_un a;
    socklen_t len = join_address(JOIN_KEY, &a);

    if (!strcmp(path, "env"))
        return key_read_variable(KEY_VARIABLE, ret, e);
    if (strcmp(path, "-") != 0)
        return read_file(path, ret, e);
    auto_fd listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, len) < 0 || listen(listener, 8) < 0)
        return pd_fail_sys(e, "listen for the key");

    while (can_read(listener, t)) {
        auto_fd speaker = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (speaker >= 0 && hear(speaker, ret))
            return 0;
    }
    return pd_fail(e, PD_TIMEOUT, "nobody has said the key");
}
