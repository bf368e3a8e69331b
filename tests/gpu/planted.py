#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Would the tests see it?  planted.py BUILD-DIRECTORY [WORD [TEST]] | --check

Each mistake below is made in a copy of a source, which is linked to a test in place of the right one: the test must fail, and
with the copy unchanged it must pass.  WORD: only mistakes whose source or sentence has it.
TEST: another test than theirs, fake_plans or test_prop_rounds-pipeline say, which the kit runs (kit.py).  --check: only that each has its place.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KERNEL, BOXES, BUNDLES, ROUNDS, GATHER = ("reshard/engine/gpu_helper/kernels.cu", "reshard/engine/gpu/boxes.c", "reshard/engine/rounds/bundles.c",
					  "reshard/engine/rounds/rounds.c", "reshard/engine/plan/gather.c")
PIPELINE, LANE, EXCHANGE = (f"reshard/engine/gpu_helper/{name}.c" for name in ("pipeline", "lane", "exchange"))
SERVE = "reshard/engine/gpu_helper/serve.c"
WIRE, CHANNEL, HELPER, REMOTE, CREW = (f"reshard/engine/gpu/{name}.c" for name in ("wire", "channel", "helper", "remote", "crew"))
LOADS = "reshard/engine/loads/loads.c"
NEED_CUDA = (PIPELINE, LANE, EXCHANGE, WIRE, SERVE, CHANNEL, HELPER, REMOTE, LOADS)	# its headers, to be built or to be tested
PTX = "reshard/kernels.ptx"	# of the build, if nvcc made one
# what is compiled for a source, the test that is to fail
USES = {KERNEL: ("tests/gpu/host_run.cc", "test_gpu_boxes"), PTX: ("tests/kernels_ptx.c", "test_gpu_boxes-ptx"),
	BOXES: (BOXES, "test_gpu_boxes"), BUNDLES: (BUNDLES, "test_prop_rounds"),
	WIRE: (WIRE, "test_gpu_serve"), SERVE: (SERVE, "test_gpu_serve"), CHANNEL: (CHANNEL, "test_gpu_helper"), HELPER: (HELPER, "test_gpu_helper"),
	REMOTE: (REMOTE, "test_gpu_helper"), LOADS: (LOADS, "test_gpu_loads"), CREW: (CREW, "test_gpu_crew"), PIPELINE: (PIPELINE, "test_gpu_pipeline"), LANE: (LANE, "test_gpu_pipeline"),
	EXCHANGE: (EXCHANGE, "test_gpu_pipeline"), ROUNDS: (ROUNDS, "test_prop_rounds"), GATHER: (GATHER, "test_prop_rounds")}
FIT = "test_reshard_rounds"
FAR = ("test_gpu_joint",)
# lines of the pipeline
IF = "\n\tif (rc == 0)\n\t\t"
IN_WAITS = "TRY(cudaStreamWaitEvent, l->streams[RS_LANE_IN], s->events[l->last], 0);"
IN_RECORDS = "TRY(cudaEventRecord, s->events[RS_LANE_IN_DONE], l->streams[RS_LANE_IN]);"
RUN_WAITS = "TRY(cudaStreamWaitEvent, l->streams[RS_LANE_RUN], s->events[RS_LANE_IN_DONE], 0);"
RUN_WAITS_LAST = "TRY(cudaStreamWaitEvent, l->streams[RS_LANE_RUN], s->events[RS_LANE_OUT_DONE], 0);"
CLEAR = "rc = clear(l, s, err);"
CLEARS = "l->pool->window_bytes, l->streams[RS_LANE_RUN]);"
RUN_RECORDS = "TRY(cudaEventRecord, s->events[RS_LANE_RAN], l->streams[RS_LANE_RUN]);"
NET_WAITS = "TRY(cudaStreamWaitEvent, l->streams[RS_LANE_NET], s->events[RS_LANE_RAN], 0);"
NET_RECORDS = "TRY(cudaEventRecord, s->events[RS_LANE_EXCHANGED], l->streams[RS_LANE_NET]);"
UNPACK_WAITS = "TRY(cudaStreamWaitEvent, l->streams[RS_LANE_UNPACK], s->events[RS_LANE_EXCHANGED], 0);"
UNPACK = "rc = launch(l, RS_LANE_UNPACK, s, s->boxes, s->tables.nr_tiles, err);"
UNPACK_RECORDS = "TRY(cudaEventRecord, s->events[RS_LANE_UNPACKED], l->streams[RS_LANE_UNPACK]);"
OUT_WAITS = "TRY(cudaStreamWaitEvent, l->streams[RS_LANE_OUT], s->events[l->last], 0);\n\trc = "
KEEP_WAITS = "TRY(cudaStreamWaitEvent, l->streams[RS_LANE_OUT], s->events[l->last], 0);\n\tfor "
OUT_RECORDS = "TRY(cudaEventRecord, s->events[RS_LANE_OUT_DONE], l->streams[RS_LANE_OUT]);"
ZEROS, LAUNCH = "rc = launch(l, RS_LANE_RUN, s, 0, s->zeros, err);", "rc = launch(l, RS_LANE_RUN, s, s->zeros, s->boxes, err);"
COPY_TILES = "rc = copy(l, RS_LANE_IN, device.tiles, pinned->tiles, pinned->nr_tiles * sizeof(struct rs_tile), err);"
COPY_OUT = "rc = copy(l, RS_LANE_OUT, s->pinned[RS_POOL_OUT], s->device[RS_POOL_OUT], share->out_bytes, err);" + IF
FILLS = "rc = wait_for_all(p, slot, RS_LANE_IN_DONE, err);"
PLANS = "for (uint32_t k = 0; rc == 0 && k < round->nr; k++)\n\t\trc = rs_lane_plan(&p->lanes[k], slot, &round->shares[k], err);"
EXCHANGES = "if (rc == 0)\n\t\trc = exchange(p, slot, round, err);\n\t"
UNPACKS = "for (uint32_t k = 0; rc == 0 && p->exchange && k < round->nr; k++)\n\t\trc = rs_lane_unpack(&p->lanes[k], slot, err);\n\t"
# source, text, what takes its place, in words, and the test if it is another one
MISTAKES = [
	(KERNEL, "rest * e[k].d;", "rest * e[0].d;", "a dimension is divided by the length of another"),
	(KERNEL, "word >= to + 3 && word + WORD + 3 <= to + run", "word >= to && word + WORD <= to + run", "words around a row are loaded beyond its ends"),
	(KERNEL, "__funnelshift_r(d, e, bits)", "__funnelshift_r(d, d, bits)", "the last word of a shifted load"),
	(KERNEL, "e = bits ? LOAD(w + 4) : 0", "e = LOAD(w + 4)", "an aligned load takes a word more"),
	(KERNEL, "end = to + run - word < WORD ? (uint32_t)(to + run - word) : WORD;", "end = WORD;", "the end of a row is not cut"),
	(KERNEL, "begin = word < to ? (uint32_t)(to - word) : 0;", "begin = 0;", "the begin of a row is not cut"),
	(KERNEL, "for (; u < end; u += step) {", "for (; u + 1 < end; u += step) {", "the last unit of a tile is left out"),
	(KERNEL, "*ret_from += i * fs[k];", "*ret_from += (uint32_t)(i * fs[k]);", "32 bits of a stride's product"),
	(KERNEL, "* sizeof(T);", "* 4;", "every unit is 4 bytes wide"),
	(KERNEL, "from += word - to;", "from += word > to ? word - to : 0;", "the source of a row's first word"),
	(KERNEL, "i < nr; i += gridDim.x", "i < nr; i += gridDim.x + 1", "tiles that no block takes"),
	(KERNEL, "kind == RS_BOX_ZERO ? (uint8_t)0 : LOAD", "0 ? (uint8_t)0 : LOAD", "the ends of zeros are loaded"),
	(PTX, "min.u64", "max.u64", "an instruction: where a row ends"),
	(PTX, "setp.lt.u32", "setp.le.u32", "an instruction: where a loop ends"),
	(PTX, "mul.hi.u32", "mul.lo.s32", "an instruction: a quotient"),
	(BOXES, "apart % WORD ? RS_BOX_SHIFT : RS_BOX_PEEL", "RS_BOX_PEEL", "both sides are taken for aligned"),
	(BOXES, "apart |= c->to_stride[k] ^ c->from_stride[k];", "", "rows that drift apart are taken for aligned"),
	(BOXES, "both |= c->to_stride[k] | c->from_stride[k];", "both |= c->to_stride[k];", "the source's strides are not asked"),
	(BOXES, "c->run + 2 * (WORD - 1)", "c->run + WORD - 1", "a row that touches a word more"),
	(BOXES, "(32 + v.shift)) + d - 1) / d", "(32 + v.shift))) / d", "a divisor is rounded down"),
	(BOXES, "c->from_stride[last] == c->ext[k] * c->from_stride[k]", "1", "dimensions are joined that only the target joins"),
	(BOXES, "b.from += from;", "b.from += to;", "the second half of a large box"),
	(BOXES, "bytes > to->bytes || ", "", "a target may have a byte twice"),
	(BOXES, "is_inside(&c, c.from, c.from_stride, from->bytes)", "1", "sources may be outside"),
	(BOXES, "(uint32_t)sc_min_u64(step, units - at)", "(uint32_t)step", "the last tile is as long as the others"),
	(BOXES, "*t = before;", "", "a refused copy leaves boxes in the tables"),
	(GATHER, "ret->from += c->ext[0] / c->rows * before * c->from_stride[0];", "ret->from += before * c->from_stride[0];", "rows that are some indexes of a collapsed dimension"),
	(GATHER, "c->row = k < shape->nr ? region->off[k] : 0;", "c->row = 0;", "all copies begin at row 0"),
	(BUNDLES, "join(s, sources[g->copies[0].source]);", "", "copies of a tensor are not joined"),
	(BUNDLES, "read <= 2 * needed", "read <= 3 * needed", "more is read than twice what is needed", FIT),
	(BUNDLES, "c->from_stride[0] >= rs_bundle_reach(&inner, inner.from_stride)", "true", "rows of a source that lie in each other", FIT),
	(BUNDLES, "bytes / nr >= b->options->run_bytes", "bytes / nr > b->options->run_bytes", "runs of just that length", FIT),
	(BUNDLES, "if (!c->rows)", "if (c->rows == 77)", "rows that nobody said", FIT),
	(ROUNDS, "like - *used", "*used - like", "places in windows at another byte of 16"),
	(ROUNDS, "out && s->held < all[i].bytes", "false", "padding between rows is not made 0"),
	(ROUNDS, "rs_copy_bytes(&c->copy) + PACK_EXTRA", "rs_copy_bytes(&c->copy)", "what packing takes for alignment is not counted"),
	(ROUNDS, "p->to = from->sends[c->writer].at + c->packed;", "p->to = from->sends[c->writer].at;", "packed boxes on each other"),
	(ROUNDS, "at = r->done.at[i].hi;", "at = r->done.at[i].lo;", "the rest has what rounds wrote"),
	(ROUNDS, "go_on(r, r->row + rows);", "go_on(r, r->row + rows - (full && rows > 1));", "a row is taken twice"),
	(ROUNDS, "a->unpacks + b->unpacks > boxes", "0", "a table is longer than it may be"),
	(ROUNDS, "if (r->done.nr > 2", "if (r->out.nr == 1) r->done.nr--; if (r->done.nr > 2", "what was written is forgotten"),
	(PIPELINE, FILLS, "rc = 0;", "input is filled again before its copy has run"),
	(PIPELINE, "rc = wait_for_all(p, slot, RS_LANE_OUT_DONE, err);", "rc = 0;", "output is drained before its copy has run"),
	(PIPELINE, "wait_for_all(p, slot, RS_LANE_OUT_DONE, err)", "wait_for_all(p, slot, p->lanes[0].last, err)", "output is drained when it is in the device"),
	(PIPELINE, "rc == 0 && k < p->o.pool.peers; k++)\n\t\trc = wait_by_host", "rc == 0 && k < 1; k++)\n\t\trc = wait_by_host", "the first GPU is waited for alone"),
	(LANE, IN_WAITS, "", "input is copied over what a kernel may still read"),
	(LANE, IN_WAITS, IN_WAITS.replace("l->last", "RS_LANE_RAN"), "tables are copied over those that are still unpacked by"),
	(LANE, RUN_WAITS, "", "a kernel does not wait for its input"),
	(LANE, RUN_WAITS, RUN_WAITS.replace("s->events", "l->slots[(slot + 1) % RS_POOL_SLOTS].events"), "a kernel waits for the input of another slot"),
	(LANE, RUN_WAITS_LAST, "", "a kernel writes over what is still copied out"),
	(LANE, OUT_WAITS, "rc = ", "output is copied before the kernel has written it"),
	(LANE, OUT_WAITS, OUT_WAITS.replace("l->last", "RS_LANE_IN_DONE"), "output waits for the input's event"),
	(LANE, OUT_WAITS, OUT_WAITS.replace("l->last", "RS_LANE_RAN"), "output does not wait for what comes from other GPUs"),
	(LANE, COPY_TILES + IF + IN_RECORDS, IN_RECORDS + IF + COPY_TILES, "IN_DONE is recorded before the last copy in"),
	(LANE, LAUNCH + IF + RUN_RECORDS, RUN_RECORDS + IF + LAUNCH, "RAN is recorded before the kernel"),
	(LANE, COPY_OUT + OUT_RECORDS, OUT_RECORDS + "\n\t" + COPY_OUT + ";", "OUT_DONE is recorded before the copy out"),
	(LANE, IN_RECORDS, IN_RECORDS.replace("l->streams[RS_LANE_IN]", "l->streams[RS_LANE_RUN]"), "IN_DONE is recorded on another stream"),
	(LANE, RUN_WAITS + "\n\t" + RUN_WAITS_LAST + "\n\t" + CLEAR + IF + ZEROS + IF + LAUNCH,
	 CLEAR + IF + ZEROS + IF + LAUNCH + "\n\t" + RUN_WAITS + "\n\t" + RUN_WAITS_LAST, "a kernel's waits come after it"),
	(LANE, CLEARS, CLEARS.replace("RS_LANE_RUN", "RS_LANE_OUT"), "a window is cleared on the stream that copies it out"),
	(LANE, "if (!s->cleared)\n\t\tTRY(cudaMemsetAsync, s->device[RS_POOL_OUT], 0, " + CLEARS, "", "a window of output begins with any bytes"),
	(LANE, ZEROS + IF + LAUNCH, LAUNCH + IF + ZEROS, "zeros come after copies"),
	(LANE, ZEROS + IF + LAUNCH, "rc = launch(l, RS_LANE_RUN, s, 0, s->boxes, err);", "zeros and copies are not in order"),
	(LANE, "args, 0, l->streams[stream]);", "args, 0, l->streams[RS_LANE_IN]);", "a kernel is on the stream of copies in"),
	(LANE, NET_WAITS, ";", "what is sent may not be packed yet"),
	(LANE, NET_WAITS, NET_WAITS.replace("RS_LANE_RAN", "RS_LANE_IN_DONE"), "an exchange waits for the input alone"),
	(LANE, UNPACK_WAITS, "", "what is unpacked may not have arrived"),
	(LANE, UNPACK_WAITS, UNPACK_WAITS.replace("s->events", "l->slots[(slot + 1) % RS_POOL_SLOTS].events"), "unpacking waits for the exchange of another slot"),
	(LANE, NET_RECORDS, NET_RECORDS.replace("RS_LANE_NET", "RS_LANE_UNPACK"), "EXCHANGED is recorded on another stream"),
	(LANE, UNPACK + IF + UNPACK_RECORDS, UNPACK_RECORDS + IF + UNPACK, "UNPACKED is recorded before the kernel"),
	(LANE, "rc = launch(l, RS_LANE_UNPACK,", "rc = launch(l, RS_LANE_NET,", "unpacking is on the stream of the exchange"),
	(LANE, "rc = launch(l, RS_LANE_UNPACK, s, s->boxes,", "rc = launch(l, RS_LANE_UNPACK, s, s->boxes + (s->boxes < s->tables.nr_tiles),", "the first tile of what arrives is not unpacked"),
	(LANE, "TRY(cudaSetDevice, l->device); /* launches are to streams of it */", "", "a kernel is started while another GPU is the current one"),
	(PIPELINE, EXCHANGES + UNPACKS, UNPACKS + EXCHANGES, "unpacking is put before the exchange"),
	(PIPELINE, FILLS + "\n\t" + PLANS, PLANS + IF + FILLS, "tables are written over those that are still copied"),
	(PIPELINE, "rc = drain(p, slot, err);\n\tfor", "p->full[slot] = false;\n\tfor", "output is copied over what nobody has drained"),
	(PIPELINE, "drain(p, (p->next + i) % RS_POOL_SLOTS, err)", "drain(p, i, err)", "what is left is drained in another order"),
	(PIPELINE, "rc = wait_for_stream(p, p->lanes[k].streams[i], err);", "rc = 0;", "memory is given back while the device uses it"),
	(PIPELINE, "rc == 0 && i < RS_LANE_STREAMS; i++)", "rc == 0 && i < 2; i++)", "memory is given back while it is copied out"),
	(PIPELINE, "errors < 2", "errors < 1", "a query that fails once is taken for the end"),
	(PIPELINE, "rs_exchange_abort(sc_steal(&p->exchange));", "", "after an error communicators are kept"),
	(PIPELINE, "rc = keep(p, rs_exchange_finish(sc_steal(&p->exchange), err), err);", ";", "communicators are those of the pass before"),
	(PIPELINE, "rc = rs_exchange_check(p->exchange, err);", "rc = 0;", "nobody hears that a peer is gone"),
	(PIPELINE, "p->exchange && sc_now_ns() >= until", "0", "a peer that is gone is waited for without an end"),
	(EXCHANGE, "return rc < 0 ? rc : settle(e, call, err);", "return rc;", "an exchange is taken for one that is on its stream"),
	(EXCHANGE, "while (state == ncclInProgress) {", "{", "a communicator is asked once"),
	(EXCHANGE, "if (state != ncclSuccess)\n\t\t\treturn nccl_failed(e, p, state, call, err);", "", "what a communicator says is not looked at"),
	(EXCHANGE, "if (sc_now_ns() >= until)", "if (0)", "a peer that does not come is waited for without an end"),
	(EXCHANGE, "const ncclResult_t ended = e->nccl->group_end();", "const ncclResult_t ended = rc ? ncclSuccess : e->nccl->group_end();", "a group of which a call fails does not end"),
	(EXCHANGE, "rc == 0 && !is_good(ended)", "0", "the result of a group's end is not looked at"),
	(EXCHANGE, "config.blocking = 0;", "", "a communicator blocks"),
	(EXCHANGE, "s->recvs[q].bytes, ncclUint8", "s->recvs[q].bytes - 1, ncclUint8", "a byte less is received than was sent"),
	(EXCHANGE, "s->sends[q].bytes, ncclUint8, (int)q", "s->sends[q].bytes, ncclUint8, (int)p", "it is sent to the sender"),
	(EXCHANGE, "peer->recv + s->recvs[q].at", "peer->recv", "all that is received is on each other"),
	(EXCHANGE, "ncclResult_t finalized = e->nccl->finalize(e->comms[p]);", "ncclResult_t finalized = ncclSuccess;", "a communicator is not finalized"),
	(EXCHANGE, "e->comms[p] = NULL;\n", "", "a communicator is ended twice"),
	(EXCHANGE, "(void)e->nccl->abort(e->comms[p]);", ";", "a communicator is kept after an error"),
	(LANE, IN_WAITS, "(void)" + IN_WAITS[4:].replace("Event, l", "Event(l"), "a wait's result is not looked at"),
	(LANE, RUN_RECORDS, "(void)" + RUN_RECORDS[4:].replace("Record, s", "Record(s"), "a record's result is not looked at"),
	(LANE, "TRY(cudaMemcpyAsync, to", "(void)cudaMemcpyAsync(to", "a copy's result is not looked at"),
	(LANE, "TRY(cudaLaunchKernel, (", "(void)cudaLaunchKernel((", "a launch's result is not looked at"),
	(PIPELINE, "return state == cudaSuccess ? 0", "return state != cudaErrorNotReady ? 0", "a device that failed is taken for one that is ready"),
	(PIPELINE, "int rc = p->o.idle(p->o.arg, err);\n\n\tif", "int rc = p->o.idle(p->o.arg, err) & 0;\n\n\tif", "nobody ends a wait"),
	(LANE, "s->pinned[RS_POOL_IN], share->in_bytes,", "s->pinned[RS_POOL_IN], share->in_bytes - 1,", "the last byte of input is not copied"),
	(LANE, "s->device[RS_POOL_OUT], share->out_bytes,", "s->device[RS_POOL_OUT], share->out_bytes - 1,", "the last byte of output is not copied"),
	(PIPELINE, "p->first = *err;", ";", "the first error is forgotten"),
	(LANE, "(void)cudaEventDestroy(s->events[k]);", ";", "events are kept"),
	(PIPELINE, "(void)rs_pipeline_close(p, &ignored);", "", "what was made before an error is kept"),
	(PIPELINE, "if (p->pinned)", "if (0)", "the pool stays pinned"),
	(WIRE, "zero > 1 || ", "", "a byte that is no bool is taken for one"),
	(WIRE, "copies[i].nr > SC_DIMS_MAX", "copies[i].nr > 250", "a copy may have 200 dimensions"),
	(WIRE, "k < NR_TABLES(pool) ? rows_max(pool, k) : 0", "UINT32_MAX", "more copies than a plan has room for"),
	(WIRE, "s->sends[q].bytes != shares[q - pool->first].recvs[p].bytes", "0", "what is sent is not what is received"),
	(WIRE, "w->drained++;", "", "what was drained is not counted"),
	(WIRE, "w->filled = false;", "", "a round is taken for filled because the one before was"),
	(SERVE, "rc = rs_wire_step(&s->wire, ret, false, err);", "rc = 0;", "what the daemon says is not checked"),
	(CHANNEL, "n == sizeof(*ret) && ", "", "a part of a message is taken for all of it"),
	(HELPER, "rs_child_kill(h->child);", "", "a helper that does not end is not killed"),
	(HELPER, "rc = rs_wire_step(&h->wire, ret, true, err);", "rc = 0;", "what the helper says is not checked"),
	(EXCHANGE, "(int)(e->o.first + p), &config", "(int)p, &config", "GPUs of each node are ranks from 0 on", "test_gpu_joint"),
	(EXCHANGE, "q < e->o.world", "q < e->o.peers", "GPUs of other nodes are sent nothing", "test_gpu_joint"),
	(PIPELINE, "round->shares[k].send_bytes || round->shares[k].recv_bytes", "round->shares[k].send_bytes != 0", "who only receives makes no exchange", "test_gpu_joint"),
	(PIPELINE, "if (p->has_id)", "if (0)", "each node has an id of its own", "test_gpu_joint"),
	(WIRE, "&round->shares[pool->first + p]", "&round->shares[p]", "a node is given the shares of another one", "test_gpu_joint"),
	(REMOTE, "&round->shares[b->call.pool.first + p]", "&round->shares[p]", "what a node wrote is taken for another one's", "test_gpu_joint"),
	(REMOTE, "j->window_bytes > pool->window_bytes || ", "", "a node takes windows that it has no memory for", "test_gpu_joint"),
	(REMOTE, "if (b->targets[i].fd < 0)\n\t\t\tcontinue;", "", "the host writes other nodes' files", "test_gpu_joint"),
	(REMOTE, "window(&b->call, p, nr, RS_POOL_OUT)", "window(&b->call, p, nr + 1, RS_POOL_OUT)", "output is taken from another slot"),
	(REMOTE, "window(&b->call, p, nr, RS_POOL_OUT)", "window(&b->call, 0, nr, RS_POOL_OUT)", "output is taken from the first GPU"),
	(REMOTE, "outs->nr = share->nr_out;", "", "ranges of a round that is not drained are forgotten"),
	(REMOTE, "if (b.of_files)\n\t\t\treturn rc;", "", "a call that was stopped is done again by the host"),
	(REMOTE, "b->ticked -= again;", "", "what the host does again is counted wrongly"),
	(REMOTE, "rc == 0 && b->call.h", "0", "a failure is never forgotten"),
	# files in memory of a GPU
	(LANE, "TRY(cudaMemsetAsync, buffer->at, 0, buffer->room, l->streams[RS_LANE_OUT]);", "", "a buffer is not zeroed", "test_gpu_buffers"),
	(LANE, KEEP_WAITS, "for ", "a buffer gets output before the kernel has written it", "test_gpu_buffers"),
	(LANE, "TRY(cudaEventRecord, s->events[RS_LANE_OUT_DONE], l->streams[RS_LANE_OUT]);\n\treturn 0;", "return 0;",
	 "output is overwritten while a buffer gets it", "test_gpu_buffers"),
	(LANE, "e->at > buffer->bytes || e->bytes > buffer->bytes - e->at", "0", "bytes behind a buffer are written", "test_gpu_buffers"),
	(LANE, "if (b.at)\n\t\t\t(void)cudaFree(b.at);", "", "a buffer of which there is no handle is not given back", "test_gpu_buffers"),
	(PIPELINE, "rc == SC_E_NO_MEMORY ? rc : keep(p, rc, err);", "keep(p, rc, err);", "a GPU without room for a buffer is given up", "test_gpu_buffers"),
	(PIPELINE, "if (p->buffers[i].at)\n\t\t\t(void)rs_lane_give(&p->lanes[0], &p->buffers[i], err);", ";", "buffers are not given back in the end",
	 "test_gpu_buffers"),
	(WIRE, "w->buffers &= ~bit_of(w->buffer);", "", "a buffer can be given back twice"),
	(WIRE, ": !m->nr || w->buffers & bit_of(m->nr);", ": true;", "a pass ends in a buffer that is not there"),
	(LOADS, "l->h && l->life == load->life && ", "l->h && ", "a file is there that a helper had which has ended"),
	(LOADS, "!l->h || load->life != l->life)", "!l->h)", "what a helper had that has ended is given back to the next one"),
	(LOADS, "l->taken += room_of(load->file.bytes);", "", "what open files take is not counted"),
	(LOADS, "l->taken -= room_of(load->file.bytes);", "", "what a close gives back is not counted"),
	(LOADS, "rc = put_pieces(p, err);\n\tif (rc == 0)\n\t\trc = rs_call_say", "rc = rs_call_say", "what no round writes is not put"),
	(LOADS, "if (!p->by_host)", "if (0)", "rounds of a file are not filled in"),
	(LOADS, "if (l->h && rs_channel_is_closed(l->h->fd, 0))\n\t\tend_helper(l, 0);", "", "a helper that has ended is asked"),
	(CREW, "while (c->busy)", "while (0)", "a range is there before other threads have read their parts"),
	(CREW, "c->next += n;", "c->next += n + (n == RS_CREW_PART_BYTES);", "a byte between two parts is not read"),
	(CREW, "c->to + (at - c->from)", "c->to + (c->next - c->from - n)", "a part is read to where the next one belongs"),
	(CREW, "c->next = c->end;\n", "", "parts are read behind an error"),
	(CREW, "if (!c->first.code)\n\t\t\t\tc->first = err;", ";", "an error is forgotten"),
	(CREW, "if (!c->first.code)", "", "the last error is told in the place of the first"),
]


def command(build, of):
	"""How the build compiles a source: a list of words."""
	for unit in json.load(open(os.path.join(build, "compile_commands.json"))):
		path = os.path.normpath(os.path.join(unit["directory"], unit["file"]))
		if path in (str(ROOT / of), os.path.abspath(os.path.join(build, of))):
			return shlex.split(unit["command"])
	sys.exit(f"planted: {build} does not compile {of}")


def text_of(build, source):
	return (pathlib.Path(build) if source == PTX else ROOT).joinpath(source).read_text()


def compiled(build, source, text, folder):
	"""An object of what is compiled for a source, if the source were this text; its name in the build."""
	use = USES[source][0]
	copy = pathlib.Path(folder, source)
	copy.parent.mkdir(parents=True)
	copy.write_text(text)
	words = command(build, use)
	name = words[words.index("-o") + 1]
	words[words.index("-o") + 1] = f"{folder}/out.o"
	words[words.index("-c") + 1] = str(copy if use == source else ROOT / use)
	if source == PTX:
		words[words.index("-c") + 1] = f"{folder}/ptx.c"
		subprocess.run([ROOT / "tests/gpu/ptx_to_c.py", copy, f"{folder}/ptx.c"], check=True)
	words = [w for w in words if not w.startswith("-O") and w not in ("-MD", "-g")] + ["-O0" if source == PTX else "-O1"]
	for flag in ("-MQ", "-MF"):
		del words[words.index(flag):words.index(flag) + 2]
	words.insert(2 if words[0].endswith("ccache") else 1, f"-I{folder}")	# meson takes it where it is
	subprocess.run(words, cwd=build, check=True, stderr=subprocess.DEVNULL)
	return f"{folder}/out.o", name


def passes(build, source, test, text):
	far = test in FAR and source in (EXCHANGE, PIPELINE)	# it is the helper that has the mistake
	with tempfile.TemporaryDirectory(prefix="scalai-planted.") as folder:
		made, name = compiled(build, source, text, folder)
		link = subprocess.run(["ninja", "-t", "commands", "-s", "tests/fake_helper" if far else f"tests/{test}"], cwd=build, check=True, capture_output=True, text=True).stdout
		words = [w for w in shlex.split(link) if w != name]	# what an archive has gives way to ours
		words[words.index("-o") + 1] = f"{folder}/test"
		words.insert(words.index("-o"), made)
		subprocess.run(words, cwd=build, check=True)
		env = {**os.environ, "ROUNDS": os.environ.get("ROUNDS", "600"), "UBSAN_OPTIONS": "halt_on_error=1", "CMOCKA_TEST_ABORT": "1",
		       "ASAN_OPTIONS": "detect_leaks=0"}
		if far:
			env["FAR_HELPER"] = f"{folder}/test"
		try:
			return subprocess.run([f"{build}/tests/{test}" if far else f"{folder}/test"], env=env, capture_output=True, timeout=400).returncode == 0
		except subprocess.TimeoutExpired:
			return False	# it never ends: seen


def test_of(mistake):
	return mistake[4] if len(mistake) > 4 else USES[mistake[0]][1]


def check():
	"""Whether each mistake has its place in the sources, and one only."""
	wrong = [(m, text_of("", m[0]).count(m[1])) for m in MISTAKES if m[0] != PTX]
	wrong = [(m, n) for m, n in wrong if n != 1]
	for m, n in wrong:
		print(f"planted: {m[0]} has {m[1]!r} {n} times: {m[3]}")
	return 1 if wrong else 0


def tries(build, mistake):
	source, old, new = mistake[:3]
	text = text_of(build, source)
	if text.count(old) != 1 and source != PTX or old not in text:
		sys.exit(f"planted: {source} has '{old}' {text.count(old)} times")
	return passes(build, source, test_of(mistake), text.replace(old, new, 1))


def main(build, word="", test=None):
	if build == "--check":
		return check()
	build = os.path.abspath(build)
	mistakes = [(*m[:4], test) if test else m for m in MISTAKES if word in m[0] + m[3]]
	if not os.path.exists(os.path.join(build, PTX)):
		print("planted: nvcc has made no PTX, so no mistake is planted in it")
		mistakes = [m for m in mistakes if m[0] != PTX]
	if not os.path.exists(os.path.join(build, "tests/test_gpu_pipeline")):
		print("planted: no headers of CUDA, so no mistake is planted in the pipeline and around it")
		mistakes = [m for m in mistakes if m[0] not in NEED_CUDA]
	failed = 0
	with concurrent.futures.ThreadPoolExecutor(2) as pool:
		right = {key: pool.submit(passes, build, *key, text_of(build, key[0])) for key in sorted({(m[0], test_of(m)) for m in mistakes})}
		planted = [(m, pool.submit(tries, build, m)) for m in mistakes]
		for (source, test), result in right.items():
			if not result.result():
				failed += 1
				print(f"{source} is unchanged, and {test} fails", flush=True)
		for m, result in planted:
			if result.result():
				failed += 1
				print(f"{m[0]}: not seen by {test_of(m)}: {m[3]}", flush=True)
	print(f"{len(mistakes)} mistakes planted, {len(mistakes) + len(right) - failed} of {len(mistakes) + len(right)} tests as they should be")
	return 1 if failed else 0


sys.exit(main(*sys.argv[1:]))
