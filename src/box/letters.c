/* How this works: one loop. What the socket has is sealed and put; the next letter is asked for, is
 * opened, removed and written to the socket, and only when all of it is there the one behind it is
 * asked for. Waiting for the socket is also the pause between two looks into the bucket: it is
 * short while there is traffic, and doubles while there is none. */
#include "box/letters.h"

#include "base/banned.h"
#include "base/fd.h"
#include "base/parse.h"
#include "link/proof.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define PAUSE_LEAST (10 * NS_PER_MS)
#define PAUSE_MOST  NS_PER_S
#define CALL_EVERY  NS_PER_S

_Static_assert(LETTERS_KEY == SHA256_SIZE && LETTERS_PROOF == SHA256_SIZE, "both are digests");

/* ---- names and keys ---- */

void letters_here_name(char out[LETTERS_NAME], const char *prefix)
{
    snprintf(out, LETTERS_NAME, "%.*s.here", (int)LETTERS_PREFIX, prefix);
}

void letters_call_name(char out[LETTERS_NAME], const char *prefix, uint32_t call)
{
    snprintf(out, LETTERS_NAME, "%.*s.%lu.call", (int)LETTERS_PREFIX, prefix, (unsigned long)call);
}

void letters_name(char out[LETTERS_NAME], const char *prefix, uint32_t call, enum letters_way way,
                  uint32_t number)
{
    snprintf(out, LETTERS_NAME, "%.*s.%lu.%c.%lu", (int)LETTERS_PREFIX, prefix, (unsigned long)call,
             (char)way, (unsigned long)number);
}

uint32_t letters_call_of(const char *prefix, const char *name)
{
    size_t len = strlen(prefix);
    char digits[11];
    uint64_t call;

    if (strncmp(name, prefix, len) != 0 || name[len] != '.')
        return 0;
    name += len + 1;
    len = strspn(name, "0123456789");
    if (!len || len >= sizeof digits || name[len] != '.')
        return 0;
    snprintf(digits, sizeof digits, "%.*s", (int)len, name);
    return parse_u64("a call", digits, 1, UINT32_MAX, &call, NULL) < 0 ? 0 : (uint32_t)call;
}

/* What is signed begins with a word of its own, so that no other use of the key fits. */
static void derive(const uint8_t root[LETTERS_KEY], const char *word, uint32_t call,
                   const uint8_t salt[LETTERS_SALT], uint8_t ret[SHA256_SIZE])
{
    uint8_t text[16 + 4 + LETTERS_SALT] = {0};

    snprintf((char *)text, 16, "letters %.7s", word);
    for (unsigned i = 0; i < 4; i++)
        text[16 + i] = (uint8_t)(call >> (8 * i));
    memcpy(text + 20, salt, LETTERS_SALT);
    hmac_sha256(root, LETTERS_KEY, text, sizeof text, ret);
}

void letters_here(const uint8_t root[LETTERS_KEY], uint8_t ret[LETTERS_PROOF])
{
    derive(root, "here", 0, (const uint8_t[LETTERS_SALT]){0}, ret);
}

void letters_call(const uint8_t root[LETTERS_KEY], uint32_t call, const uint8_t salt[LETTERS_SALT],
                  uint8_t ret[LETTERS_CALL], uint8_t ret_key[LETTERS_KEY])
{
    memcpy(ret, salt, LETTERS_SALT);
    derive(root, "call", call, salt, ret + LETTERS_SALT);
    derive(root, "key", call, salt, ret_key);
}

bool letters_call_read(const uint8_t root[LETTERS_KEY], uint32_t call, const void *data, size_t len,
                       uint8_t ret_key[LETTERS_KEY])
{
    uint8_t whole[LETTERS_CALL], key[LETTERS_KEY];

    if (len != sizeof whole)
        return false;
    letters_call(root, call, data, whole, key);
    bool good = proof_equal(whole + LETTERS_SALT, (const uint8_t *)data + LETTERS_SALT);
    if (good)
        memcpy(ret_key, key, sizeof key);
    explicit_bzero(key, sizeof key);
    return good;
}

/* ---- letters ---- */

struct carry {
    const struct letters *l;
    uint32_t in, out;  /* the numbers that are next */
    struct buf letter; /* the last that came */
    const uint8_t *at; /* of what it says, what the socket has not yet */
    size_t left;
    uint8_t piece[LETTERS_ROOM];
    deadline silent, call;
    uint64_t pause;
    bool moved;
};

static void make_nonce(enum letters_way way, uint32_t number, uint8_t ret[LETTERS_NONCE])
{
    memset(ret, 0, LETTERS_NONCE);
    ret[0] = (uint8_t)way;
    for (unsigned i = 0; i < 4; i++)
        ret[8 + i] = (uint8_t)(number >> (8 * i));
}

static uint32_t read_head(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Seals what `piece` has behind its head, and puts it. The number is used up before: a put that
 * failed may be there all the same, and what is said next must not have its nonce. */
static bool post(struct carry *c, size_t len)
{
    const struct letters *l = c->l;
    uint8_t nonce[LETTERS_NONCE];
    char name[LETTERS_NAME];
    uint32_t rest = (uint32_t)len + LETTERS_TAG, number = c->out;

    if (!number)
        return false; /* they have come round */
    c->out++;
    for (unsigned i = 0; i < 4; i++)
        c->piece[i] = (uint8_t)(rest >> (8 * i));
    make_nonce(l->out, number, nonce);
    letters_name(name, l->prefix, l->call, l->out, number);
    if (!l->store->crypt(true, l->key, nonce, c->piece + 4, len, c->piece + 4 + len) ||
        l->store->put(l->store->context, name, c->piece, 4 + rest) < 0)
        return false;
    c->moved = true;
    return true;
}

/* All that the socket has, in one letter or several. False when it is over. */
static bool take_near(struct carry *c)
{
    size_t len = 0;
    bool over = false;

    while (len < LETTERS_PIECE) {
        ssize_t n = recv(c->l->near, c->piece + 4 + len, LETTERS_PIECE - len, MSG_DONTWAIT);
        over = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    return (!len || post(c, len)) && !over;
}

/* Of the last letter, what the socket takes. */
static bool give_near(struct carry *c)
{
    while (c->left) {
        ssize_t n = send(c->l->near, c->at, c->left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        c->at += n;
        c->left -= (size_t)n;
        c->moved = true;
    }
    return true;
}

/* Opens the letter in place. False when it is none of the other end's. */
static bool open_letter(struct carry *c, size_t len)
{
    const struct letters *l = c->l;
    uint8_t nonce[LETTERS_NONCE];

    make_nonce(l->out == LETTERS_UP ? LETTERS_DOWN : LETTERS_UP, c->in, nonce);
    return l->store->crypt(false, l->key, nonce, c->letter.data + 4, len, c->letter.data + 4 + len);
}

/* The next letter, if it is there. False when it is over. */
static bool take_letter(struct carry *c)
{
    const struct letters *l = c->l;
    char name[LETTERS_NAME];

    letters_name(name, l->prefix, l->call, l->out == LETTERS_UP ? LETTERS_DOWN : LETTERS_UP, c->in);
    buf_clear(&c->letter);
    int r = l->store->get(l->store->context, name, &c->letter);
    if (r <= 0)
        return r == 0;
    if (c->letter.len < 4)
        return true; /* it is being written */

    uint32_t rest = read_head(c->letter.data);
    if (rest < LETTERS_TAG || rest > LETTERS_PIECE + LETTERS_TAG)
        return false;
    if (c->letter.len < 4 + (size_t)rest)
        return true;
    if (!open_letter(c, rest - LETTERS_TAG))
        return false;

    l->store->drop(l->store->context, name);
    c->at = c->letter.data + 4;
    c->left = rest - LETTERS_TAG;
    c->moved = true;
    c->silent = l->silence ? deadline_in(l->silence) : DEADLINE_NONE;
    return c->left > 0 && c->in++ != UINT32_MAX;
}

static bool is_superseded(struct carry *c)
{
    char name[LETTERS_NAME];

    if (!c->l->follows || !deadline_passed(c->call))
        return false;
    c->call = deadline_in(CALL_EVERY);
    letters_call_name(name, c->l->prefix, c->l->call + 1);
    buf_clear(&c->letter);
    return c->l->store->get(c->l->store->context, name, &c->letter) > 0;
}

/* Returns whether there is more. */
static bool turn(struct carry *c)
{
    short events = (short)(POLLIN | (c->left ? POLLOUT : 0));
    struct pollfd p = {.fd = c->l->near, .events = events};

    c->pause = c->moved ? PAUSE_LEAST : c->pause * 2 < PAUSE_MOST ? c->pause * 2 : PAUSE_MOST;
    if (poll(&p, 1, deadline_poll_ms(deadline_in(c->pause))) < 0 && errno != EINTR)
        return false;
    c->moved = false;
    if (p.revents & ~POLLOUT && !take_near(c))
        return false;
    if (!give_near(c) || (!c->left && (is_superseded(c) || !take_letter(c))))
        return false;
    return !deadline_passed(c->silent);
}

void letters_carry(const struct letters *l)
{
    static struct carry c; /* a process has one connection at a time */

    c = (struct carry){.l = l,
                       .in = 1,
                       .out = 1,
                       .letter = BUF_INIT(LETTERS_ROOM + 1),
                       .silent = l->silence ? deadline_in(l->silence) : DEADLINE_NONE,
                       .moved = true};
    while (turn(&c))
        ;
    (void)post(&c, 0); /* the other end need not find out by itself */
    buf_done(&c.letter);
    explicit_bzero(c.piece, sizeof c.piece);
}
