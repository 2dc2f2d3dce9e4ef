/* The note of a session that was made at the E2B door: a small JSON object that only this file
 * reads and writes. */
#include "api/e2b.h"

#include "base/banned.h"
#include "base/json.h"

void e2b_note_read(struct session *s, struct e2b_note *ret)
{
    struct pd_err e;
    const char *text;
    char *note = session_note(s);

    *ret = (struct e2b_note){.secure = true,
                             .private_ports = true,
                             .allow_out = BUF_INIT(NOTE_MAX),
                             .deny_out = BUF_INIT(NOTE_MAX)};
    auto_fields f = {0};
    if (note && note[0] && fields_parse(&f, note, strlen(note), FIELDS_OPEN, &e) == 0) {
        ret->is_ours = true;
        fields_bool(&f, "secure", FIELD_OPTIONAL, &ret->secure);
        fields_bool(&f, "auto_resume", FIELD_OPTIONAL, &ret->auto_resume);
        fields_bool(&f, "private_ports", FIELD_OPTIONAL, &ret->private_ports);
        if (fields_str(&f, "mask_host", FIELD_OPTIONAL, 1, sizeof ret->mask_host - 1, &text))
            snprintf(ret->mask_host, sizeof ret->mask_host, "%s", text);
        if (fields_str(&f, "user", FIELD_OPTIONAL, 1, sizeof ret->user - 1, &text))
            snprintf(ret->user, sizeof ret->user, "%s", text);
        if (fields_str(&f, "workdir", FIELD_OPTIONAL, 1, sizeof ret->workdir - 1, &text))
            snprintf(ret->workdir, sizeof ret->workdir, "%s", text);
        fields_json(&f, "allow_out", FIELD_OPTIONAL, NOTE_MAX - 1, &ret->allow_out);
        fields_json(&f, "deny_out", FIELD_OPTIONAL, NOTE_MAX - 1, &ret->deny_out);
    }

    free(note);
}

void e2b_put_list(struct json *j, const char *key, const struct buf *list)
{
    if (!list->len)
        return;
    json_key(j, key);
    buf_put(j->out, list->data, list->len);
    j->need_comma = 1;
}

int e2b_note_write(const struct e2b_note *n, struct buf *out)
{
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_bool(&j, "secure", n->secure);
    json_member_bool(&j, "auto_resume", n->auto_resume);
    json_member_bool(&j, "private_ports", n->private_ports);
    if (n->mask_host[0])
        json_member_cstr(&j, "mask_host", n->mask_host);
    if (n->user[0])
        json_member_cstr(&j, "user", n->user);
    if (n->workdir[0])
        json_member_cstr(&j, "workdir", n->workdir);

    e2b_put_list(&j, "allow_out", &n->allow_out);
    e2b_put_list(&j, "deny_out", &n->deny_out);

    json_close(&j, '}');
    return out->overflow ? -1 : 0;
}

void e2b_note_done(struct e2b_note *n)
{
    buf_done(&n->allow_out);
    buf_done(&n->deny_out);
}
