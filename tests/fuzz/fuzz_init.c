/* Init's side of the protocol, turn by turn, with frames made of any bytes.
 *
 * An input is a row of records: type, id, epoch, descriptors, length, payload. Commands are only
 * ever /bin/true or something that does not exist: a payload that happens to be another command is
 * replaced.
 *
 * Properties: each request that wants an answer gets exactly one, with its id, in order; requests
 * of older epochs and acknowledgements get none; STARTED and EXITED name commands that were asked
 * for; the table stays in its bounds; in the end no descriptor is left. */
#include "base/err.h"
#include "init/init.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RECORDS_MAX 24

struct session {
    struct init in;
    int sock;
    uint64_t epoch, old_epoch; /* now, and before the last request */
    uint8_t asked[256];        /* ids that an EXEC had */
};

static void require(int holds)
{
    if (!holds)
        abort();
}

static int lowest_free(void)
{
    int fd = fcntl(0, F_DUPFD_CLOEXEC, 0);
    close(fd);
    return fd;
}

static void put_command(struct buf *out, uint8_t choice)
{
    static const char *const words[] = {"/bin/true", "true", "/no/such/file", "", "/", "no-such"};
    static const char *const places[] = {"/", "", "/no/such/dir", "relative"};
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    msg_list_add(&argv, words[choice % 6]);
    msg_list_add(&env, choice & 64 ? "PATH=" : "PATH=:/nowhere:/bin");
    struct msg_exec m = {.cwd = places[choice / 6 % 4],
                         .file_size = choice & 128 ? 1 : 0,
                         .argv = msg_list_of(&argv),
                         .environ = msg_list_of(&env)};
    buf_clear(out);
    msg_exec_encode(out, &m);
    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
}

/* Takes every frame that is there; returns how many answered `id`. */
static unsigned drain(struct session *s, const struct wire_head *asked)
{
    unsigned answers = 0;
    struct frame f = FRAME_INIT;
    struct pd_err e;
    int r;

    for (; (r = wire_recv(s->sock, &f, 0, &e)) == 1; frame_reset(&f)) {
        struct msg_exited end;
        require(f.fd_count == 0);

        /* An end may have been under way when the request came. */
        require(f.head.epoch == s->epoch ||
                (f.head.epoch == s->old_epoch && f.head.type == WIRE_EXITED));
        switch (f.head.type) {
        case WIRE_STARTED:
            require(asked->type == WIRE_EXEC && wire_id_equal(f.head.id, asked->id));
            answers++;
            break;

        case WIRE_ERROR:
            require(msg_error_raise(&f, &e) < 0 && e.msg[0]);
            require(wire_id_equal(f.head.id, asked->id));
            answers++;
            break;
        case WIRE_DONE:
            require(asked->type == WIRE_SIGNAL && wire_id_equal(f.head.id, asked->id));
            answers++;
            break;

        case WIRE_SYNC_END:
            require(asked->type == WIRE_SYNC && wire_id_equal(f.head.id, asked->id));
            answers++;
            break;

        case WIRE_SYNCED:
        case WIRE_EXITED:
            require(msg_exited_decode(&f.payload, &end, &e) == 0 && end.pid > 0);
            require(s->asked[f.head.id.bytes[0]]);
            require(f.head.type == WIRE_SYNCED || end.exited);
            break;
        default:
            abort();
        }
    }

    require(r == -1 && e.code == PD_TIMEOUT);
    frame_done(&f);
    return answers;
}

/* One record; returns how many bytes it had. */
static size_t step(struct session *s, const uint8_t *data, size_t size)
{
    static const enum wire_type types[] = {WIRE_EXEC, WIRE_SIGNAL, WIRE_ACK,  WIRE_SYNC,
                                           WIRE_LIST, WIRE_HELLO,  WIRE_ERROR};
    if (size < 5)
        return size;

    size_t len = data[4] < size - 5 ? data[4] : size - 5;
    struct wire_head head = {.type = data[0] < 200 ? (uint16_t)types[data[0] % 7] : data[0],
                             .id = {{data[1] % 8}},
                             .epoch = data[2],
                             .flags = data[3] >> 3};
    auto_buf payload = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_exec m;
    buf_put(&payload, data + 5, len);
    if (head.type == WIRE_EXEC && (data[0] % 2 == 0 || msg_exec_decode(&payload, &m, NULL) == 0))
        put_command(&payload, len ? data[5] : 0);

    if (head.type == WIRE_SIGNAL && len == 2) {
        struct msg_signal signal = {.exec = {{data[5] % 8}}, .signal = (int8_t)data[6]};
        buf_clear(&payload);
        msg_signal_encode(&payload, &signal);
    }

    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fds[WIRE_FDS_MAX] = {null, null, null, null, null, null};
    unsigned fd_count = data[3] % 8 < 7 ? data[3] % 8 : 3;
    require(wire_send(s->sock, &head, &payload, fds, fd_count, 0) == 0);
    close(null);

    require(init_turn(&s->in, 0) == 0);
    int old = head.epoch < s->epoch;
    s->old_epoch = s->epoch;
    if (!old) {
        s->epoch = head.epoch;
        if (head.type == WIRE_EXEC)
            s->asked[head.id.bytes[0]] = 1;
    }

    unsigned answers = drain(s, &head);
    if (head.type == WIRE_EXEC && head.flags & EXEC_QUIET && !old)
        require(answers <= 1); /* only a refusal, or the answer to a repeated one */
    else
        require(answers == (old || head.type == WIRE_ACK ? 0 : 1));
    require(s->in.process_count <= 8 && s->in.in.fd_count == 0);
    return 5 + len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct session s = {.epoch = 0};
    sigset_t mask;
    int pair[2], before = lowest_free();

    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    s.sock = pair[0];
    require(init_begin(&s.in, INIT_SINGLE, pair[1]) == 0);

    for (int i = 0; i < RECORDS_MAX && size; i++) {
        size_t used = step(&s, data, size);
        data += used;
        size -= used;
    }

    /* The rest as it is: whatever it says, at most the connection ends. */
    if (size) {
        (void)send(s.sock, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)init_turn(&s.in, 0);
    }
    close(s.sock);

    init_end(&s.in);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    require(lowest_free() == before);
    return 0;
}
