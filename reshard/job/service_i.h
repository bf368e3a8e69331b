/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share. */
#ifndef RS_SERVICE_I_H
#define RS_SERVICE_I_H

#include "reshard/engine/copy.h"
#include "reshard/job/service.h"
#include "reshard/upkeep/upkeep_i.h"


#endif
