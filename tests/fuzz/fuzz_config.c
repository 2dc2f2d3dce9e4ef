/* Any bytes as a configuration file. The first byte chooses what else is done with it.
 *
 * Properties: the parser calls back in the order of lines, with keys of its alphabet and values
 * without control characters; a refusal is PD_INVALID, names file and line, and is terminated; a
 * value that was set shows as text that sets the same value again; a value that was refused leaves
 * the old one alone. */
#include "config/config.h"
#include "config/config_table.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    struct config *config;
    unsigned line, calls;
};

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_text(const char *text)
{
    for (; *text; text++)
        require(((unsigned char)*text >= ' ' || *text == '\t') && *text != 0x7f);
}

static void check_value(struct config *c, const struct config_key *k, const char *value)
{
    auto_buf before = BUF_INIT(1u << 18), after = BUF_INIT(1u << 18), again = BUF_INIT(1u << 18);
    struct pd_err e = {.msg = ""};
    config_show(c, k, &before);

    int r = config_set(c, k, "x", value, &e);
    config_show(c, k, &after);
    const char *was = buf_cstr(&before), *is = buf_cstr(&after);
    require(was && is);
    if (r < 0) {
        require(e.code == PD_INVALID && !strncmp(e.msg, "x: ", 3) && !strcmp(was, is));
        return;
    }

    require(config_set(c, k, "x", is, NULL) == 0);
    config_show(c, k, &again);
    require(!strcmp(is, buf_cstr(&again)));
}

static int each(void *arg, unsigned line, const char *key, const char *value, struct pd_err *e)
{
    struct seen *s = arg;
    require(line > s->line);
    s->line = line;
    s->calls++;
    require(*key && !key[strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_")]);
    check_text(value);

    const struct config_key *k = config_find(key, strlen(key), 0);
    const char *near = config_nearest(key);
    if (k) {
        require(near && !strcmp(near, key));
        check_value(s->config, k, value);
        return 0;
    }

    return *key == 'z' ? pd_fail(e, PD_INVALID, "file:%u: no", line) : 0;
}

/* What passes the check can be relied on. */
static void check_whole(const struct config *c)
{
    struct pd_err e = {.msg = ""};
    char domain[CONFIG_DOMAIN_SIZE];
    if (config_check(c, &e) < 0) {
        require(e.code == PD_INVALID && e.msg[0]);
        return;
    }

    config_public_domain(c, domain, sizeof domain);
    require(!domain[0] == !c->listen_tls.count);
    require(!strncmp(domain, c->domain, domain[0] ? strlen(c->domain) : 0));

    for (unsigned i = 0; i < c->templates.count; i++) {
        char name[129] = "";
        size_t len = strcspn(c->templates.items[i], "=");
        require(len > 0 && len < sizeof name);
        memcpy(name, c->templates.items[i], len);
        require(config_template(c, name) == c->templates.items[i] + len + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;

    char *exact = malloc(size);
    struct config *c = calloc(1, sizeof *c);
    if (exact && c) {
        struct pd_err e = {.msg = ""};
        struct seen s = {.config = c};
        memcpy(exact, data + 1, size - 1);
        for (unsigned i = 0; i < config_key_count; i++)
            if (!config_is_derived(&config_keys[i]))
                require(config_set(c, &config_keys[i], "x", config_keys[i].value, NULL) == 0);

        if (config_parse("file", exact, size - 1, each, &s, &e) < 0) {
            require(e.code == PD_INVALID && !strncmp(e.msg, "file:", 5));
            require(memchr(e.msg, 0, sizeof e.msg) != NULL);
        }
        config_derive_ceilings(c);
        check_whole(c);

        /* As a value of any key, without the file around it. */
        if (size < 200) {
            exact[size - 1] = 0;
            const struct config_key *k = &config_keys[data[0] % config_key_count];
            check_value(c, k, exact);
        }
    }

    config_free(c);
    free(exact);
    return 0;
}
