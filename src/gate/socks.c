/* How this works: three questions, each with one answer.
 *
 *   METHOD   which ways to log in we know           -> the one that it wants
 *   LOGIN    user and password, if that was it      -> whether they are right
 *   REPLY    connect to this name, or address       -> whether it has, and an address that we skip
 */
#include "gate/socks.h"

#include "base/banned.h"

#define VERSION       5
#define LOGIN_VERSION 1
#define CONNECT       1

enum method { METHOD_NONE = 0, METHOD_PASSWORD = 2 };
enum kind { KIND_V4 = 1, KIND_NAME = 3, KIND_V6 = 4 };

static void put(struct socks *s, const void *data, size_t len)
{
    memcpy(s->out + s->out_len, data, len);
    s->out_len += len;
}

static void put_byte(struct socks *s, unsigned byte)
{
    s->out[s->out_len++] = (uint8_t)byte;
}

static void put_word(struct socks *s, const char *word)
{
    put_byte(s, (unsigned)strlen(word));
    put(s, word, strlen(word));
}

static bool is_word(const char *word)
{
    return word[0] && strlen(word) <= SOCKS_WORD_MAX;
}

bool socks_begin(struct socks *s, const struct socks_target *to)
{
    *s = (struct socks){.to = *to, .stage = SOCKS_METHOD};
    if ((to->name && !is_word(to->name)) || (to->user && !is_word(to->user)) ||
        (to->password && strlen(to->password) > SOCKS_WORD_MAX))
        return false;

    put_byte(s, VERSION);
    put_byte(s, to->user ? 2 : 1);
    put_byte(s, METHOD_NONE);
    if (to->user)
        put_byte(s, METHOD_PASSWORD);
    return true;
}

static void put_login(struct socks *s)
{
    s->stage = SOCKS_LOGIN;
    put_byte(s, LOGIN_VERSION);
    put_word(s, s->to.user);
    put_word(s, s->to.password ? s->to.password : "");
}

static void put_request(struct socks *s)
{
    bool v4 = ip_is_v4(s->to.address);

    s->stage = SOCKS_REPLY;
    put_byte(s, VERSION);
    put_byte(s, CONNECT);
    put_byte(s, 0);
    if (s->to.name) {
        put_byte(s, KIND_NAME);
        put_word(s, s->to.name);
    } else {
        put_byte(s, v4 ? KIND_V4 : KIND_V6);
        put(s, s->to.address.bytes + (v4 ? 12 : 0), v4 ? 4 : 16);
    }
    put_byte(s, s->to.port >> 8);
    put_byte(s, s->to.port & 255);
}

/* The whole length of a reply, as far as that can be told: its address may be of several kinds. 0:
 * it is of none. */
static size_t reply_size(const struct socks *s)
{
    if (s->in_len < 5)
        return 5;
    switch (s->in[3]) {
    case KIND_V4:
        return 4 + 4 + 2;
    case KIND_V6:
        return 4 + 16 + 2;
    case KIND_NAME:
        return 5u + s->in[4] + 2;
    default:
        return 0;
    }
}

size_t socks_wants(const struct socks *s)
{
    size_t size = s->stage == SOCKS_OVER ? 0 : s->stage == SOCKS_REPLY ? reply_size(s) : 2;
    return size > s->in_len ? size - s->in_len : 0;
}

static enum socks_step fail(struct socks *s, const char *why)
{
    s->stage = SOCKS_OVER;
    s->why = why;
    return SOCKS_BAD;
}

static const char *reply_text(uint8_t code)
{
    static const char *const texts[] = {
        "",
        "the proxy has failed",
        "the proxy does not allow it",
        "the proxy cannot reach the network",
        "the proxy cannot reach the host",
        "the host refused the proxy's connection",
        "the proxy waited too long",
        "the proxy knows no such command",
        "the proxy knows no such kind of address",
    };
    return code < sizeof texts / sizeof *texts ? texts[code] : "the proxy refused it";
}

static enum socks_step take_method(struct socks *s)
{
    s->out_len = 0;
    if (s->in[0] != VERSION)
        return fail(s, "the proxy does not speak SOCKS5");
    if (s->in[1] == METHOD_NONE)
        put_request(s);
    else if (s->in[1] == METHOD_PASSWORD && s->to.user)
        put_login(s);
    else
        return fail(s, s->to.user ? "the proxy takes no user and password"
                                  : "the proxy wants a user and a password");
    return SOCKS_SAY;
}

static enum socks_step take_login(struct socks *s)
{
    s->out_len = 0;
    if (s->in[0] != LOGIN_VERSION)
        return fail(s, "the proxy does not speak SOCKS5");
    if (s->in[1] != 0)
        return fail(s, "the proxy refused the user or the password");
    put_request(s);
    return SOCKS_SAY;
}

static enum socks_step take_reply(struct socks *s)
{
    if (s->in[0] != VERSION || s->in[2] != 0 || !reply_size(s))
        return fail(s, "the proxy does not speak SOCKS5");
    if (s->in[1] != 0)
        return fail(s, reply_text(s->in[1]));
    if (socks_wants(s))
        return SOCKS_MORE;
    s->stage = SOCKS_OVER;
    return SOCKS_DONE;
}

enum socks_step socks_take(struct socks *s, const void *data, size_t len)
{
    enum socks_step step;

    if (s->stage == SOCKS_OVER || len > socks_wants(s))
        return fail(s, "the proxy said more than it was asked");
    memcpy(s->in + s->in_len, data, len);
    s->in_len += len;
    if (socks_wants(s) && (s->stage != SOCKS_REPLY || s->in_len < 5))
        return SOCKS_MORE;

    if (s->stage == SOCKS_METHOD)
        step = take_method(s);
    else if (s->stage == SOCKS_LOGIN)
        step = take_login(s);
    else
        step = take_reply(s);
    if (step == SOCKS_SAY)
        s->in_len = 0;
    return step;
}
