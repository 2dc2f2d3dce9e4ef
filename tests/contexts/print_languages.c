/* Prints the table of languages for tests that run the drivers without a server. Each row: the
 * fields with a NUL behind each, lists with one more NUL behind them, then the length of the driver
 * and its text. */
#include "contexts/languages.h"

#include <stdio.h>

static void print(const char *text)
{
    printf("%s%c", text, 0);
}

static void print_list(const char *const *list)
{
    for (; *list; list++)
        print(*list);
    print("");
}

int main(void)
{
    for (size_t i = 0; i < context_language_count(); i++) {
        const struct context_language *l = context_language_at(i);
        print(l->name);
        print(l->forks ? "forks" : "");
        print(l->listed ? "listed" : "");
        print(l->plain ? "plain" : "");
        print(l->missing);
        print(l->usual ? l->usual : "");
        print_list(l->aliases);
        print_list(l->argv);
        printf("%zu%c", (size_t)(l->driver_end - l->driver), 0);
        fwrite(l->driver, 1, (size_t)(l->driver_end - l->driver), stdout);
    }

    return 0;
}
