/* The table of tools, with what a model is told about them. */
#include "api/mcp.h"

#include "base/banned.h"

#define OBJECT(properties, required)                                                               \
    "{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required                 \
    "],\"additionalProperties\":false}"
#define TEXT(name, what)   "\"" name "\":{\"type\":\"string\",\"description\":\"" what "\"}"
#define NUMBER(name, what) "\"" name "\":{\"type\":\"number\",\"description\":\"" what "\"}"
#define WHOLE(name, what)  "\"" name "\":{\"type\":\"integer\",\"description\":\"" what "\"}"
#define YES_NO(name, what) "\"" name "\":{\"type\":\"boolean\",\"description\":\"" what "\"}"

#define READS   "{\"readOnlyHint\":true,\"openWorldHint\":false}"
#define CHANGES "{\"readOnlyHint\":false,\"destructiveHint\":true,\"openWorldHint\":false}"
#define ADDS    "{\"readOnlyHint\":false,\"destructiveHint\":false,\"openWorldHint\":false}"

#define TIMEOUT NUMBER("timeout_s", "Ends it after this many seconds; 120 unless given")
#define CWD     TEXT("cwd", "Directory to run in; the session's own unless given")

const struct mcp_tool mcp_tools[] = {
    {"run_command", "Run a command",
     "Runs a bash command line in the sandbox and waits for its end. Gives the exit code, the "
     "output and the error output; long output is cut in the middle. `cd` and `export` hold for "
     "later calls. For servers and other things that do not end use start_process.",
     OBJECT(TEXT("command", "The command line, for bash") "," TIMEOUT "," CWD, "\"command\""),
     CHANGES, mcp_run_command},
    {"run_code", "Run code",
     "Runs a program text in the sandbox and waits for its end. Each call is a new process: "
     "variables do not stay, files do.",
     OBJECT("\"language\":{\"type\":\"string\",\"enum\":[\"python\",\"javascript\",\"bash\"],"
            "\"description\":\"What the code is written in\"}," TEXT(
                "code", "The program text") "," TIMEOUT "," CWD,
            "\"language\",\"code\""),
     CHANGES, mcp_run_code},
    {"read_file", "Read a file", "Gives a text file of the sandbox, or some of its lines.",
     OBJECT(TEXT("path", "Absolute, or below /workspace") "," WHOLE(
                "first_line", "Where to begin, from 1") "," WHOLE("lines",
                                                                  "How many lines; all unless "
                                                                  "given"),
            "\"path\""),
     READS, mcp_read_file},
    {"write_file", "Write a file",
     "Makes a file or replaces its whole content. Directories above it are made.",
     OBJECT(TEXT("path", "Absolute, or below /workspace") "," TEXT("content", "The whole content"),
            "\"path\",\"content\""),
     CHANGES, mcp_write_file},
    {"edit_file", "Edit a file",
     "Replaces a piece of text in a file. The old text must be there exactly once, unless all are "
     "to be replaced: give enough of the lines around it.",
     OBJECT(TEXT("path", "Absolute, or below /workspace") "," TEXT(
                "old_text",
                "What is there now") "," TEXT("new_text",
                                              "What shall be there") "," YES_NO("all",
                                                                                "Replace every "
                                                                                "occurrence"),
            "\"path\",\"old_text\",\"new_text\""),
     CHANGES, mcp_edit_file},
    {"list_files", "List files", "Lists a directory of the sandbox.",
     OBJECT(TEXT("path", "Absolute, or below /workspace, which it is unless given") "," WHOLE(
                "depth", "How many levels; 1 unless given"),
            ""),
     READS, mcp_list_files},
    {"search_files", "Search files",
     "Finds lines in files that have a text or match a regular expression, or files by name.",
     OBJECT(TEXT("pattern",
                 "What to look for") ","
                                     "\"mode\":{\"type\":\"string\",\"enum\":[\"literal\","
                                     "\"regex\",\"name\"],"
                                     "\"description\":\"literal: lines with this text (unless "
                                     "given); regex: POSIX extended; "
                                     "name: files whose name matches this glob\"}," TEXT(
                                         "path",
                                         "Where; /workspace unless given") "," TEXT("glob",
                                                                                    "Only in files "
                                                                                    "whose name "
                                                                                    "matches, such "
                                                                                    "as *.py"),
            "\"pattern\""),
     READS, mcp_search_files},
    {"start_process", "Start a process",
     "Starts a command in the background, such as a server, and gives its pid at once.",
     OBJECT(TEXT("command", "The command line, for bash") "," CWD, "\"command\""), CHANGES,
     mcp_start_process},
    {"check_process", "Look at a process",
     "Tells whether a process of start_process still runs, and what it has written since the "
     "given place (`next` of the last call). Can wait for its end, and write to its input.",
     OBJECT(WHOLE("pid", "Its pid") "," TEXT("input", "Written to its standard input") "," NUMBER(
                "wait_s", "Waits so long for its end; 0 unless given") "," WHOLE("from",
                                                                                 "The place in its "
                                                                                 "output"),
            "\"pid\""),
     ADDS, mcp_check_process},
    {"stop_process", "Stop a process", "Ends a process of start_process and all that it started.",
     OBJECT(WHOLE("pid", "Its pid"), "\"pid\""), CHANGES, mcp_stop_process},
    {"preview_port", "Preview a port",
     "Gives a link to a server that listens on a port in the sandbox, for a browser.",
     OBJECT(WHOLE("port", "The port"), "\"port\""), ADDS, mcp_preview_port},
    {"session_info", "About the sandbox",
     "Tells the sandbox's id, limits, working directory, running processes and when it ends.",
     OBJECT("", ""), READS, mcp_session_info},
};
const unsigned mcp_tool_count = sizeof mcp_tools / sizeof *mcp_tools;
