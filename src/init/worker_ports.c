/* Ports of servers in the sandbox.
 *
 * dial connects to one on loopback, IPv4 first and then IPv6, answers with a record, and from then
 * on copies bytes: descriptor 0 to the socket, the socket to descriptor 1, each direction until its
 * own end.
 *
 * ports lists those that are listened on, from /proc/self/net, and finds the process of each by the
 * inode of its socket among the descriptors in /proc. */
#include "init/worker.h"

#include "base/banned.h"
#include "base/fd.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#define DIAL_PATIENCE (5 * NS_PER_S)
#define RELAY_BYTES   (128u << 10)
#define PORTS_MAX     1024u
#define TABLE_MAX     (4u << 20)
#define TCP_LISTENING 0x0a

/* --- dial ---------------------------------------------------------------------------------- */

static int connect_by(int family, const void *address, socklen_t len, deadline d, int *ret)
{
    auto_fd sock = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1, error = 0;
    socklen_t size = sizeof error;

    if (sock < 0)
        return -errno;
    if (connect(sock, address, len) < 0) {
        if (errno != EINPROGRESS)
            return -errno;
        struct pollfd p = {.fd = sock, .events = POLLOUT};
        int n;
        do
            n = poll(&p, 1, deadline_poll_ms(d));
        while (n < 0 && errno == EINTR);

        if (n == 0)
            return -ETIMEDOUT;
        if (n < 0 || getsockopt(sock, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
            return -errno;
        if (error)
            return -error;
    }

    (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *ret = fd_take(&sock);
    return 0;
}

static int connect_to(uint16_t port, int *ret, const char **ret_address, struct pd_err *e)
{
    deadline d = deadline_in(DIAL_PATIENCE);
    struct sockaddr_in four = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 six = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};

    *ret_address = "127.0.0.1";
    int r = connect_by(AF_INET, &four, sizeof four, d, ret);
    if (r < 0) {
        *ret_address = "::1";
        int again = connect_by(AF_INET6, &six, sizeof six, d, ret);
        /* Without IPv6 the first answer says more. */
        if (again == 0 || r == -ECONNREFUSED)
            r = again == 0 ? 0 : r;
    }

    if (r == -ETIMEDOUT)
        return pd_fail(e, PD_TIMEOUT, "port %u in the sandbox does not answer within 5 s", port);
    if (r < 0) {
        pd_fail(e, PD_BAD_GATEWAY,
                "nothing listens on port %u in the sandbox (%s); start a server there, on "
                "127.0.0.1 or 0.0.0.0",
                port, strerror(-r));
        if (e)
            e->sys = -r;
    }
    return r < 0 ? -1 : 0;
}

/* One direction: bytes that were read and not yet written. */
struct relay {
    int from, to;
    char *bytes;
    size_t start, end;
    int open; /* `from` has not ended */
    int done; /* and `to` was told so */
};

/* Reads what is there and writes what fits. -1 when `to` takes no more. */
static int relay_step(struct relay *r)
{
    if (r->start == r->end && r->open) {
        ssize_t n = read(r->from, r->bytes, RELAY_BYTES);
        if (n > 0) {
            r->start = 0;
            r->end = (size_t)n;
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            r->open = 0;
        }
    }

    while (r->start < r->end) {
        ssize_t n = write(r->to, r->bytes + r->start, r->end - r->start);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        r->start += (size_t)n;
    }
    return 0;
}

static short relay_wants(const struct relay *r)
{
    return r->open && r->start == r->end ? POLLIN : 0;
}

static short relay_gives(const struct relay *r)
{
    return r->start < r->end ? POLLOUT : 0;
}

/* Until both directions have ended, or one of the peers is gone altogether. */
static void shuttle(int sock)
{
    struct relay in = {.from = 0, .to = sock, .open = 1, .bytes = malloc(RELAY_BYTES)};
    struct relay out = {.from = sock, .to = 1, .open = 1, .bytes = malloc(RELAY_BYTES)};
    if (!in.bytes || !out.bytes)
        return;

    while (!in.done || !out.done) {
        struct pollfd p[3] = {{in.done ? -1 : 0, relay_wants(&in), 0},
                              {sock, (short)(relay_gives(&in) | relay_wants(&out)), 0},
                              {out.done ? -1 : 1, relay_gives(&out), 0}};

        /* Hang-ups are told without asking, again and again: a side with nothing to do is left
         * out. */
        if (!p[0].events)
            p[0].fd = -1;
        if (!p[1].events)
            p[1].fd = -1;

        if (poll(p, 3, -1) < 0) {
            if (errno == EINTR)
                continue;
            return;
        }
        if (p[2].revents & POLLERR) /* nobody reads the answers any more */
            return;

        int lost = p[0].revents || p[1].revents & POLLOUT ? relay_step(&in) : 0;
        if (lost < 0) /* the server reads no more; what it still says is passed on */
            in.open = 0, in.start = in.end = 0;
        if ((p[1].revents & ~POLLOUT || p[2].revents) && relay_step(&out) < 0)
            return;

        if (!in.done && !in.open && in.start == in.end) {
            shutdown(sock, SHUT_WR);
            in.done = 1;
        }
        if (!out.done && !out.open && out.start == out.end) {
            close(1);
            out.done = 1;
            /* The server has ended, and what it is still sent goes nowhere: TCP would say so only
             * after the next bytes. */
            if (p[1].revents & (POLLERR | POLLHUP))
                return;
        }
    }
}

int worker_dial(struct worker_job *w, struct pd_err *e)
{
    uint64_t port;
    int sock;
    const char *address;

    if (worker_number("port", w->argv[1], 1, 65535, &port, e) < 0 ||
        connect_to((uint16_t)port, &sock, &address, e) < 0)
        return -1;

    struct record r = {.kind = RECORD_PORT,
                       .port = {.port = (uint32_t)port, .address = address, .command = ""}};
    worker_put(w, &r);
    worker_flush(w);

    signal(SIGPIPE, SIG_IGN);
    fd_set_nonblock(0);
    fd_set_nonblock(1);
    shuttle(sock);
    _exit(0); /* descriptor 1 has raw bytes: no record may follow */
}

/* --- ports --------------------------------------------------------------------------------- */

struct listener {
    uint32_t port;
    char address[INET6_ADDRSTRLEN];
    unsigned long inode;
    uint32_t pid;
};

struct listeners {
    struct listener *rows;
    size_t count;
};

/* "0100007F" (IPv4) or four such words: each is a number of this machine's byte order. */
static int parse_address(const char *hex, size_t len, char *out)
{
    uint32_t words[4];
    if (len != 8 && len != 32)
        return -1;

    for (size_t i = 0; i < len / 8; i++) {
        char word[9];
        memcpy(word, hex + 8 * i, 8);
        word[8] = 0;
        words[i] = (uint32_t)strtoul(word, NULL, 16);
    }

    return inet_ntop(len == 8 ? AF_INET : AF_INET6, words, out, INET6_ADDRSTRLEN) ? 0 : -1;
}

/* The next word of a line, or NULL. */
static char *next_word(char **at)
{
    char *word = *at + strspn(*at, " \t");
    size_t n = strcspn(word, " \t");
    if (!n)
        return NULL;

    *at = word + n + (word[n] != 0);
    word[n] = 0;
    return word;
}

/* A line of /proc/net/tcp: number, local address:port, remote one, state, and as the tenth word the
 * socket's inode. */
static void parse_line(struct listeners *l, char *line)
{
    enum { LOCAL = 1, STATE = 3, INODE = 9, WORDS };
    char *words[WORDS];

    for (int i = 0; i < WORDS; i++)
        if (!(words[i] = next_word(&line)))
            return;

    char *colon = strchr(words[LOCAL], ':');
    if (strtoul(words[STATE], NULL, 16) != TCP_LISTENING || !colon || l->count == PORTS_MAX)
        return;
    struct listener *row = &l->rows[l->count];
    if (parse_address(words[LOCAL], (size_t)(colon - words[LOCAL]), row->address) < 0)
        return;

    row->port = (uint32_t)strtoul(colon + 1, NULL, 16) & 0xffff;
    row->inode = strtoul(words[INODE], NULL, 10);
    row->pid = 0;
    l->count++;
}

static void read_table(struct listeners *l, const char *file)
{
    auto_fd fd = open(file, O_RDONLY | O_CLOEXEC);
    auto_buf text = BUF_INIT(TABLE_MAX);

    for (uint8_t *room; fd >= 0 && (room = buf_reserve(&text, 4096));) {
        ssize_t n = read(fd, room, 4096);
        if (n <= 0)
            break;
        text.len += (size_t)n;
    }

    char *line = (char *)text.data, *end;
    for (char *stop = line + text.len; line && (end = memchr(line, '\n', (size_t)(stop - line)));
         line = end + 1) {
        *end = 0;
        parse_line(l, line);
    }
}

static uint32_t pid_of(const char *name)
{
    char *end;
    unsigned long n = strtoul(name, &end, 10);
    return *end || !n || n >= INT32_MAX ? 0 : (uint32_t)n;
}

/* Enters the process as the owner of those sockets that it holds; one whose descriptors the
 * sandbox's user may not see owns none. */
static void find_owner(struct listeners *l, uint32_t pid)
{
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%u/fd", pid);
    DIR *d = opendir(path);
    if (!d)
        return;

    for (struct dirent *f; (f = readdir(d));) {
        ssize_t n = readlinkat(dirfd(d), f->d_name, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        if (strncmp(target, "socket:[", 8) != 0)
            continue;

        unsigned long inode = strtoul(target + 8, NULL, 10);
        for (size_t i = 0; i < l->count; i++)
            if (l->rows[i].inode == inode && !l->rows[i].pid)
                l->rows[i].pid = pid;
    }

    closedir(d);
}

static int by_port(const void *a, const void *b)
{
    const struct listener *x = a, *y = b;
    if (x->port != y->port)
        return x->port < y->port ? -1 : 1;
    return strcmp(x->address, y->address);
}

int worker_ports(struct worker_job *w, struct pd_err *e)
{
    struct listeners l = {.rows = calloc(PORTS_MAX, sizeof *l.rows)};
    if (!l.rows)
        return pd_fail(e, PD_CAPACITY, "no memory in the sandbox");

    read_table(&l, "/proc/self/net/tcp");
    read_table(&l, "/proc/self/net/tcp6");

    DIR *d = l.count ? opendir("/proc") : NULL;
    for (struct dirent *p; d && (p = readdir(d));)
        if (pid_of(p->d_name))
            find_owner(&l, pid_of(p->d_name));
    if (d)
        closedir(d);

    qsort(l.rows, l.count, sizeof *l.rows, by_port);
    for (size_t i = 0; i < l.count; i++) {
        struct listener *row = &l.rows[i];
        char path[64], command[64] = "";
        snprintf(path, sizeof path, "/proc/%u/comm", row->pid);
        if (row->pid && fd_read_file(AT_FDCWD, path, command, sizeof command) > 0)
            command[strcspn(command, "\n")] = 0;

        struct record r = {
            .kind = RECORD_PORT,
            .port = {
                .port = row->port, .pid = row->pid, .address = row->address, .command = command}};
        if (!i || by_port(row, row - 1) != 0)
            worker_put(w, &r);
    }

    free(l.rows);
    worker_put(w, &(struct record){.kind = RECORD_END});
    return 0;
}
