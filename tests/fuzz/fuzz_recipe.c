/* Any bytes as the file of a template.
 *
 * Properties: a refusal is PD_INVALID, names the file, and is terminated; what is taken has strings
 * without control characters, lists within their bounds, ports and limits in their ranges, rules
 * and secrets that their own readers take, and no package that is an option. */
#include "base/err.h"
#include "config/recipe.h"
#include "gate/rules.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_text(const char *text, int lines)
{
    for (; *text; text++)
        require(((unsigned char)*text >= ' ' && *text != 0x7f) || *text == '\t' ||
                (lines && *text == '\n'));
}

static void check_list(const struct recipe_list *l)
{
    require(l->count <= RECIPE_ITEMS_MAX);
    for (unsigned i = 0; i < l->count; i++)
        check_text(l->items[i], 1);
}

static void check_recipe(const struct recipe *r)
{
    check_text(r->title, 0);
    require(!strcmp(r->from, "default") || !strcmp(r->from, "base") ||
            !strcmp(r->from, "restricted"));
    require(!r->image || spec_check_image(r->image, NULL) == 0);
    check_list(&r->env);
    check_list(&r->programs);
    check_list(&r->packages);

    for (unsigned i = 0; i < r->packages.count; i++)
        require(r->packages.items[i][3] == ':' && r->packages.items[i][4] &&
                r->packages.items[i][4] != '-');
    for (unsigned i = 0; i < r->allow.count; i++) {
        char name[RULES_NAME_MAX + 1];
        struct rule rule;
        require(rule_parse(r->allow.items[i], &rule, name, NULL) == 0);
    }
    for (unsigned i = 0; i < r->secrets.count; i++) {
        struct secret_rule rule;
        require(secret_rule_parse(r->secrets.items[i], &rule, NULL) == 0);
    }
    require(r->file_count <= RECIPE_ITEMS_MAX && r->port_count <= RECIPE_ITEMS_MAX);
    for (unsigned i = 0; i < r->file_count; i++) {
        require(r->files[i].path[0] == '/' || !strncmp(r->files[i].path, "~/", 2));
        check_text(r->files[i].path, 0);
        check_text(r->files[i].content, 1);
    }
    for (unsigned i = 0; i < r->port_count; i++)
        require(r->ports[i].number >= 1 && r->ports[i].number <= 65535);
    require(!r->memory || (r->memory >= SPEC_MEMORY_MIN && r->memory <= SPEC_MEMORY_MAX));
    require(r->ready_within_ms > 0);
    require(r->start || (!r->ready && !r->ready_port));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_err e = {.msg = ""};
    char *exact = malloc(size ? size : 1);
    if (!exact)
        return 0;

    memcpy(exact, data, size);
    struct recipe *r = recipe_parse("file", "name", exact, size, &e);
    if (r)
        check_recipe(r);
    else
        require(e.code == PD_INVALID && !strncmp(e.msg, "file:", 5) &&
                memchr(e.msg, 0, sizeof e.msg));
    recipe_free(r);
    free(exact);
    return 0;
}
