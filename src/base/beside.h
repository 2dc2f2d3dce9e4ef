/* beside: programs of the project that another one starts. */
#pragma once

/* Becomes the program of this name: the one beside this program, else the one where it is
 * installed (../libexec/paddock); with a '/' in the name, that one. argv[0] is set here. Returns
 * when there is none. */
void exec_beside(const char *name, const char **argv);
