/* The templates of the server, as the v1 API lists them: those that are always there, other names
 * of them, and files (config/recipe.h); before them, those that the caller has built. */
#include "api/builds.h"
#include "api/handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "config/recipe.h"
#include "gate/rules.h"

static void put_list(struct json *j, const char *key, const struct recipe_list *l)
{
    json_key(j, key);
    json_open(j, '[');
    for (unsigned i = 0; i < l->count; i++)
        json_cstr(j, l->items[i]);
    json_close(j, ']');
}

/* Names alone: values are nobody's business but the sandbox's. */
static void put_variables(struct json *j, const struct recipe_list *env)
{
    json_key(j, "env");
    json_open(j, '[');
    for (unsigned i = 0; i < env->count; i++)
        json_str(j, env->items[i], strcspn(env->items[i], "="));
    json_close(j, ']');
}

static void put_secrets(struct json *j, const struct recipe_list *secrets)
{
    struct secret_rule rule;

    json_key(j, "secrets");
    json_open(j, '[');
    for (unsigned i = 0; i < secrets->count; i++) {
        if (secret_rule_parse(secrets->items[i], &rule, NULL) < 0)
            continue;
        json_open(j, '{');
        json_member_cstr(j, "env", rule.env);
        json_member_cstr(j, "secret", rule.name);
        json_member_cstr(j, "host", rule.host);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void put_ports(struct json *j, const struct recipe *t)
{
    json_key(j, "ports");
    json_open(j, '[');
    for (unsigned i = 0; i < t->port_count; i++) {
        json_open(j, '{');
        json_member_uint(j, "port", t->ports[i].number);
        json_member_str(j, "title", t->ports[i].title);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void put_recipe(struct json *j, const struct recipe *t)
{
    json_member_str(j, "title", t->title);
    json_member_cstr(j, "image", t->image);
    put_list(j, "programs", &t->programs);
    put_list(j, "packages", &t->packages);
    put_list(j, "allow", &t->allow);
    put_secrets(j, &t->secrets);
    put_variables(j, &t->env);

    json_key(j, "files");
    json_open(j, '[');
    for (unsigned i = 0; i < t->file_count; i++)
        json_cstr(j, t->files[i].path);
    json_close(j, ']');

    json_member_cstr(j, "start", t->start);
    put_ports(j, t);
}

static void put_head(struct json *j, const struct config *config, const char *name,
                     const char *kind)
{
    const char *found;
    enum profile profile;

    json_open(j, '{');
    json_member_cstr(j, "name", name);
    json_member_cstr(j, "kind", kind);
    json_member_cstr(j, "profile",
                     template_find(config, name, &found, &profile) ? profile_name(profile) : NULL);
}

int templates_list(struct call *c, struct pd_err *e)
{
    const struct config *config = c->config;
    auto_buf out = BUF_INIT(8u << 20);
    struct json j = JSON_INIT(&out);

    if (call_no_query(c, e) < 0)
        return -1;

    json_open(&j, '{');
    json_key(&j, "templates");
    json_open(&j, '[');
    if (templates_put_built(c, &j, e) < 0)
        return -1;
    for (unsigned i = 0; template_name(i); i++) {
        put_head(&j, config, template_name(i), "profile");
        json_close(&j, '}');
    }
    for (unsigned i = 0; i < config->templates.count; i++) {
        char name[256];
        const char *pair = config->templates.items[i];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(pair, "="), pair);
        put_head(&j, config, name, "alias");
        json_member_cstr(&j, "of", config_template(config, name));
        json_close(&j, '}');
    }
    for (unsigned i = 0; i < config->recipes.count; i++) {
        put_head(&j, config, config->recipes.at[i]->name, "file");
        put_recipe(&j, config->recipes.at[i]);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
    return call_json(c, 200, &out);
}
