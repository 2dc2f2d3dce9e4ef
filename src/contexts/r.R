# The driver of R contexts; base packages only.
#
# How this works: docs/contexts.md ("What a driver speaks") has the lines. A shell has put the requests at descriptor 4 and copies of 1 and 2
# at 5 and 6; the loader reads the requests through `cat`, as `requests`, for R opens paths and no descriptors. So marks and events
# are written to /dev/fd/N, and where that may not be opened (a pipe of another user) by a shell. Requests are plain.
#
# All of it is in an environment below the namespace of utils, not below the workspace: a function of the code's that has the
# name of one of R's (sum, tail) is not called from here, and what the code removes from its workspace is not missed.

local({
  requests <- get("requests", globalenv())
  rm("requests", "n", envir = globalenv())
  own_pid <- Sys.getpid()
  seq <- 0L
  count <- 0L
  request <- ""
  seen <- character()
  truncated <- FALSE
  TEXT_MAX <- 1048576L

  # ---- events ----

  open_descriptor <- function(number)
    tryCatch(file(sprintf("/dev/fd/%d", number), "ab", raw = TRUE), error = function(e) NULL, warning = function(w) NULL)
  streams <- lapply(c(5L, 6L, 3L), open_descriptor)
  direct <- !any(vapply(streams, is.null, TRUE))

  # Text as JSON, in ASCII.
  quote_text <- function(text) {
    text <- iconv(enc2utf8(paste(text, collapse = "\n")), "UTF-8", "UTF-8", sub = "byte")
    codes <- utf8ToInt(text)
    if (!length(codes) || anyNA(codes)) return("\"\"")
    if (length(codes) > TEXT_MAX) {
      truncated <<- TRUE
      half <- TEXT_MAX %/% 2L
      note <- utf8ToInt(sprintf("\n... %d characters left out ...\n", length(codes) - 2L * half))
      codes <- c(head(codes, half), note, tail(codes, half))
    }
    shown <- character(length(codes))
    plain <- codes >= 32L & codes <= 126L
    shown[plain] <- intToUtf8(codes[plain], multiple = TRUE)
    shown[codes == 34L | codes == 92L] <- paste0("\\", shown[codes == 34L | codes == 92L])
    low <- !plain & codes < 65536L
    shown[low] <- sprintf("\\u%04x", codes[low])
    high <- codes[codes >= 65536L] - 65536L
    shown[codes >= 65536L] <- sprintf("\\u%04x\\u%04x", 55296L + high %/% 1024L, 56320L + high %% 1024L)
    paste0("\"", paste(shown, collapse = ""), "\"")
  }

  emit <- function(type, fields = "") {
    if (Sys.getpid() != own_pid) tools::pskill(Sys.getpid(), tools::SIGKILL)    # a child that the code forked is no driver
    flush(stdout())
    seq <<- seq + 1L
    mark <- if (nzchar(request)) sprintf("\x1e%s %d\x1e", request, seq) else ""
    id <- if (nzchar(request)) sprintf(",\"id\":\"%s\"", request) else ""
    line <- sprintf("{\"type\":\"%s\",\"seq\":%d%s%s}\n", type, seq, id, fields)
    if (direct) {
      for (i in 1:3) {
        writeChar(if (i < 3L) mark else line, streams[[i]], eos = NULL)
        flush(streams[[i]])
      }
    } else {
      octal <- gsub("\x1e", "\\\\036", mark)
      # system() puts the redirection of its input before the command: it holds for one simple command, eval.
      command <- sprintf("trap '' INT; printf '%s' >&5; printf '%s' >&6; cat >&3", octal, octal)
      system(paste("eval", shQuote(command)), input = sub("\n$", "", line))
    }
  }

  # What this process has in memory that is no file's, as a field of an event; nothing where the kernel does not say so.
  memory <- function() {
    status <- tryCatch(readLines("/proc/self/status"), error = function(e) "", warning = function(w) "")
    kilobytes <- grep("^RssAnon:", status, value = TRUE)
    if (length(kilobytes) != 1L) return("")
    sprintf(",\"memory\":%.0f", as.numeric(gsub("[^0-9]", "", kilobytes)) * 1024)
  }

  # ---- requests ----

  ALPHABET <- utf8ToInt("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  from_base64 <- function(text) {
    codes <- utf8ToInt(text)
    codes <- codes[codes != 61L]
    values <- match(codes, ALPHABET) - 1L
    if (anyNA(values)) stop("damaged")
    bytes <- (length(values) * 3L) %/% 4L
    values <- matrix(c(values, integer((-length(values)) %% 4L)), nrow = 4L)
    found <- rbind(values[1, ] * 4L + values[2, ] %/% 16L, values[2, ] %% 16L * 16L + values[3, ] %/% 4L, values[3, ] %% 4L * 64L + values[4, ])
    as.raw(as.vector(found)[seq_len(bytes)])
  }

  # A file of gzip ends in the CRC-32 of what it holds; R itself has no quick way to it.
  crc32 <- function(bytes) {
    path <- tempfile()
    on.exit(unlink(path))
    packed <- gzfile(path, "wb", compression = 1L)
    writeBin(bytes, packed)
    close(packed)
    trailer <- tail(readBin(path, "raw", file.size(path)), 8L)
    sum(as.numeric(trailer[1:4]) * 256^(0:3))
  }

  # Words of a request that is whole and new; NULL for any other.
  take <- function(line) {
    words <- strsplit(line, " ", fixed = TRUE)[[1]]
    if (!length(words) %in% 2:4 || !grepl("^[A-Za-z0-9_-]{1,64}$", words[1]) || !grepl("^[0-9a-fA-F]{8}$", words[2])) return(NULL)
    code <- tryCatch(from_base64(if (length(words) > 2L) words[3] else ""), error = function(e) NULL)
    if (is.null(code) || words[1] %in% seen || any(code == 0)) return(NULL)
    if (crc32(code) != as.numeric(paste0("0x", words[2]))) return(NULL)
    seen <<- tail(c(seen, words[1]), 64L)
    code <- rawToChar(code)
    Encoding(code) <- "UTF-8"
    list(id = words[1], code = code, variables = if (length(words) > 3L) from_base64(words[4]))
  }

  # ---- plots ----

  # What is drawn without a device of the code's own goes to a png file for each page, and is shown when the cell has ended.
  # Where this R makes no png, it goes nowhere: without a device R would write Rplots.pdf where the code works.
  pages <- file.path(tempdir(), "plots")
  opened <- 0L
  options(device = function(...) {
    if (!capabilities("png")) return(grDevices::pdf(NULL))
    opened <<- opened + 1L
    grDevices::png(file.path(pages, sprintf("%06d-%%06d.png", opened)), width = 7, height = 7, units = "in", res = 96)
  })

  # Those of the code's own stay open.
  close_plots <- function()
    for (device in grDevices::dev.list()) {
      path <- attr(.Devices[[device]], "filepath")
      if (is.character(path) && startsWith(path, pages)) grDevices::dev.off(device)
    }

  to_base64 <- function(bytes) {
    pad <- (-length(bytes)) %% 3L
    values <- matrix(as.integer(c(bytes, raw(pad))), nrow = 3L)
    codes <- rbind(values[1, ] %/% 4L, values[1, ] %% 4L * 16L + values[2, ] %/% 16L,
                   values[2, ] %% 16L * 4L + values[3, ] %/% 64L, values[3, ] %% 64L)
    text <- ALPHABET[as.vector(codes) + 1L]
    intToUtf8(c(head(text, length(text) - pad), rep(61L, pad)))
  }

  # All of a cell's are 48 MiB at most, as base64 64.
  show_plots <- function() {
    if (opened == 0L) return()
    close_plots()
    opened <<- 0L
    found <- list.files(pages, full.names = TRUE)
    sent <- 0
    for (path in found) {
      size <- file.size(path)
      sent <- sent + size
      if (size > 12e6 || sent > 48e6) {
        truncated <<- TRUE
      } else {
        picture <- to_base64(readBin(path, "raw", size))
        emit("result", sprintf(",\"main\":false,\"data\":{\"text/plain\":\"<plot>\",\"image/png\":\"%s\"}", picture))
      }
    }
  }

  # R removes its temporary directory when it ends, unless it is killed. So each driver leaves its number in its own, and removes
  # those of drivers that are gone.
  tidy <- function() {
    dir.create(pages)
    writeLines(as.character(Sys.getpid()), file.path(tempdir(), "paddock-pid"))
    for (note in Sys.glob(file.path(dirname(tempdir()), "Rtmp*", "paddock-pid"))) {
      pid <- suppressWarnings(tryCatch(readLines(note, 1L), error = function(e) ""))
      if (length(pid) && grepl("^[0-9]+$", pid) && !dir.exists(file.path("/proc", pid))) unlink(dirname(note), recursive = TRUE)
    }
  }
  try(tidy(), silent = TRUE)

  # ---- cells ----

  # Sets NAME=VALUE with a NUL behind each, and returns how it was.
  set_variables <- function(bytes) {
    ends <- which(bytes == 0)
    starts <- c(1L, head(ends, -1L) + 1L)
    entries <- mapply(function(from, to) rawToChar(bytes[from:(to - 1L)]), starts, ends)
    names <- sub("=.*", "", entries)
    before <- Sys.getenv(names, unset = NA, names = TRUE)
    do.call(Sys.setenv, as.list(stats::setNames(sub("^[^=]*=", "", entries), names)))
    before
  }

  put_back <- function(before) {
    if (any(is.na(before))) Sys.unsetenv(names(before)[is.na(before)])
    if (any(!is.na(before))) do.call(Sys.setenv, as.list(before[!is.na(before)]))
  }

  show <- function(value, main)
    emit("result", sprintf(",\"main\":%s,\"data\":{\"text/plain\":%s}", if (main) "true" else "false",
                           quote_text(utils::capture.output(print(value)))))

  warn <- function(condition) {
    cat("Warning message:\n", conditionMessage(condition), "\n", sep = "", file = stderr())
    invokeRestart("muffleWarning")
  }

  # The value of an expression. R writes what print() prints in pieces, and a reader may get each alone: such text goes out at once.
  # What is printed is computed before, so what that writes comes as it is written.
  evaluate <- function(expression) {
    prints <- is.call(expression) && identical(expression[[1]], quote(print)) && length(expression) == 2L
    if (!prints) return(withVisible(eval(expression, globalenv())))
    value <- eval(expression[[2]], globalenv())
    text <- utils::capture.output(result <- withVisible(eval(call("print", call("quote", value)), globalenv())))
    if (length(text)) cat(paste0(text, "\n", collapse = ""))
    result
  }

  run <- function(code) {
    failed <- function(name, value, trace) {
      while (sink.number() > 0L) sink()
      emit("error", sprintf(",\"name\":%s,\"value\":%s,\"traceback\":%s", quote_text(name), quote_text(value), quote_text(trace)))
      FALSE
    }
    on.exit({
      close_plots()
      unlink(list.files(pages, full.names = TRUE))
    })
    tryCatch(withCallingHandlers(allowInterrupts({
      expressions <- parse(text = code, keep.source = FALSE)
      for (i in seq_along(expressions)) {
        result <- evaluate(expressions[[i]])
        if (result$visible) show(result$value, i == length(expressions))
      }
      show_plots()
      TRUE
    }), warning = warn),
    error = function(e) failed(class(e)[1], conditionMessage(e), c(paste("Error:", conditionMessage(e)), deparse(conditionCall(e)))),
    interrupt = function(e) failed("Interrupt", "interrupted", ""))
  }

  answer <- function(words) {
    request <<- words$id
    truncated <<- FALSE
    count <<- count + 1L
    tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(e) NULL)   # one from before this cell is none
    before <- if (length(words$variables)) set_variables(words$variables) else character()
    emit("start", sprintf(",\"count\":%d", count))
    ok <- run(words$code)
    put_back(before)
    emit("end", sprintf(",\"ok\":%s%s%s", if (ok) "true" else "false", memory(), if (truncated) ",\"truncated\":true" else ""))
    request <<- ""
  }

  emit("ready", sprintf(",\"version\":\"%s.%s\"%s", R.version$major, R.version$minor, memory()))
  suspendInterrupts(repeat {
    line <- readLines(requests, 1L)
    if (!length(line)) break
    words <- take(line)
    if (!is.null(words)) answer(words)
  })
}, new.env(parent = asNamespace("utils")))
