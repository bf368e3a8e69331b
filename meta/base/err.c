/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int errno_of(int code)
{
	switch (code) {
	case 0:
		return 0;
#define X(nr, name, err_no, text)                                                                  \
	case -(nr):                                                                                \
		return err_no;
		SC_ERR_TABLE(X)
#undef X
	default:
		return EIO;
	}
}

int sc_fail_at(struct sc_err *err, int code, int errnum, const char *file, int line,
	       const char *fmt, ...)
{
	va_list ap;
	int n;

	if (code == SC_E_SYSTEM && errnum == ENOSPC)
		code = SC_E_NO_SPACE;
	if (code == SC_E_SYSTEM && errnum == ENOMEM)
		code = SC_E_NO_MEMORY;
	err->code = code;
	err->errnum = errnum ? errnum : errno_of(code);
	err->blob = 0;
	err->file = file;
	err->line = line;
	va_start(ap, fmt);
	n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	va_end(ap);
	if (errnum && n >= 0 && (size_t)n < sizeof(err->msg))
		(void)snprintf(err->msg + n, sizeof(err->msg) - (size_t)n, ": %s (errno %d)",
			       strerror(errnum), errnum);
	return code;
}

int sc_wrap(struct sc_err *err, int rc, const char *fmt, ...)
{
	char old[SC_ERR_BYTES_MAX];
	va_list ap;
	int n;

	memcpy(old, err->msg, sizeof(old));
	va_start(ap, fmt);
	n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof(err->msg))
		(void)snprintf(err->msg + n, sizeof(err->msg) - (size_t)n, ": %s", old);
	return rc;
}

void sc_err_name(struct sc_err *err, const char *name)
{
	size_t n = strlen(name);

	if (strncmp(err->msg, name, n) != 0 || !err->msg[n] || !strchr(" :", err->msg[n]))
		(void)sc_wrap(err, err->code, "%s", name);
}
