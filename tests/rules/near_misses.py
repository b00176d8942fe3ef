"""Small modules beside each rule's example in which it must stay silent, by code: near misses, for a reason each."""

# ruff: noqa: E501 - HLO has one instruction a line

ADD = """
add {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT sum = bf16[] add(a, b)
}
"""

LOOP = """
body {
  state = (s32[], f32[4096,4096]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[4096,4096] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[4096,4096] exponential(x)
  ROOT out = (s32[], f32[4096,4096]) tuple(next, y)
}
condition {
  state = (s32[], f32[4096,4096]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  six = s32[] constant(6)
  ROOT less = pred[] compare(i, six), direction=LT
}
"""

# A loop that stacks gradients; {alias} and {root} say what becomes of them behind it.
WAITING = """
HloModule waiting, input_output_alias={{ {alias} }}
body {{
  state = (s32[], f32[6,512,1024], f32[1,512,1024]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  stack = f32[6,512,1024] get-tuple-element(state), index=1
  x = f32[1,512,1024] get-tuple-element(state), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(i, one)
  grad = f32[1,512,1024] exponential(x)
  filled = f32[6,512,1024] dynamic-update-slice(stack, grad, i, zero, zero)
  ROOT out = (s32[], f32[6,512,1024], f32[1,512,1024]) tuple(next, filled, grad)
}}
condition {{
  state = (s32[], f32[6,512,1024], f32[1,512,1024]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  six = s32[] constant(6)
  ROOT less = pred[] compare(i, six), direction=LT
}}
ENTRY main {{
  old = f32[6,512,1024] parameter(0)
  x = f32[1,512,1024] parameter(1)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  empty = f32[6,512,1024] broadcast(nothing), dimensions={{}}
  start = (s32[], f32[6,512,1024], f32[1,512,1024]) tuple(zero, empty, x)
  loop = (s32[], f32[6,512,1024], f32[1,512,1024]) while(start), condition=condition, body=body
  grads = f32[6,512,1024] get-tuple-element(loop), index=1
  {root}
}}
"""

NEAR_MISSES: dict[str, dict[str, str]] = {
    "HS309": {
        "gradients that somebody else reads too must all be there": WAITING.format(
            alias="{0}: (0, {}, may-alias)",
            root="new = f32[6,512,1024] subtract(old, grads)\n  half = f32[6,512,1024] multiply(grads, grads)\n"
            "  ROOT both = (f32[6,512,1024], f32[6,512,1024]) tuple(new, half)",
        ),
        "a parameter that is not donated is not replaced": WAITING.format(
            alias="", root="ROOT new = f32[6,512,1024] subtract(old, grads)"
        ),
        "a product of them with a matrix is no update": WAITING.format(
            alias="{}: (0, {}, may-alias)",
            root="ROOT new = f32[6,512,1024] dot(old, grads), lhs_batch_dims={0,1}, rhs_batch_dims={0,1},"
            " lhs_contracting_dims={}, rhs_contracting_dims={}",
        ),
    },
    "HS104": {
        "a gather that only reads the buffer touches no empty row": """
            x = bf16[4096,512] parameter(0)
            sizes = s32[8] parameter(1)
            w = bf16[8,512,1024] parameter(2)
            index = s32[2048,1] parameter(3)
            out = bf16[4096,1024] custom-call(sizes, x, w), custom_call_target="tpu_custom_call"
            ROOT y = bf16[2048,1024] gather(out, index), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,1024}
        """,
    },
    "HS105": {
        "one number a row is no data": """
            x = bf16[4096,512] parameter(0)
            sizes = s32[8] parameter(1)
            w = bf16[8,512,1024] parameter(2)
            scale = f32[4096] parameter(3)
            out = bf16[4096,1024] custom-call(sizes, x, w), custom_call_target="tpu_custom_call"
            ROOT both = (bf16[4096,1024], f32[4096]) tuple(out, scale)
        """,
        "rows that are f32 throughout are not widened": """
            x = f32[4096,512] parameter(0)
            sizes = s32[8] parameter(1)
            w = f32[8,512,1024] parameter(2)
            out = f32[4096,1024] custom-call(sizes, x, w), custom_call_target="tpu_custom_call"
            ROOT y = f32[4096,1024] negate(out)
        """,
    },
    "HS202": {
        "another dimension of the experts that a device owns is gathered": """
            mine = bf16[8,128,2048] parameter(0)
            x = bf16[4096,1024] parameter(1)
            sizes = s32[8] parameter(2)
            all = bf16[8,1024,2048] all-gather(mine), replica_groups=[1,8]<=[8], dimensions={1}
            ROOT out = bf16[4096,2048] custom-call(sizes, x, all), custom_call_target="tpu_custom_call"
        """,
        "what is gathered along its first dimension is the rows": """
            mine = bf16[512,1024] parameter(0)
            w = bf16[8,1024,2048] parameter(1)
            sizes = s32[8] parameter(2)
            all = bf16[4096,1024] all-gather(mine), replica_groups=[1,8]<=[8], dimensions={0}
            ROOT out = bf16[4096,2048] custom-call(sizes, all, w), custom_call_target="tpu_custom_call"
        """,
    },
    "HS203": {
        "somebody reads all of it": ADD
        + """
            grad = bf16[4096,1024] parameter(0)
            mine = s32[] parameter(1)
            zero = s32[] constant(0)
            all = bf16[4096,1024] all-reduce(grad), replica_groups=[1,8]<=[8], to_apply=add
            part = bf16[512,1024] dynamic-slice(all, mine, zero), dynamic_slice_sizes={512,1024}
            whole = bf16[4096,1024] negate(all)
            ROOT both = (bf16[512,1024], bf16[4096,1024]) tuple(part, whole)
        """,
        "a few numbers do not matter": ADD
        + """
            grad = bf16[1024] parameter(0)
            mine = s32[] parameter(1)
            all = bf16[1024] all-reduce(grad), replica_groups=[1,8]<=[8], to_apply=add
            ROOT part = bf16[128] dynamic-slice(all, mine), dynamic_slice_sizes={128}
        """,
    },
    "HS204": {
        "one reader wants the wide one": """
            shard = f32[512,1024] parameter(0)
            all = f32[4096,1024] all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}
            narrow = bf16[4096,1024] convert(all)
            wide = f32[4096,1024] negate(all)
            ROOT both = (bf16[4096,1024], f32[4096,1024]) tuple(narrow, wide)
        """,
        "arithmetic comes before the rounding": """
            shard = f32[512,1024] parameter(0)
            all = f32[4096,1024] all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}
            more = f32[4096,1024] exponential(all)
            ROOT narrow = bf16[4096,1024] convert(more)
        """,
    },
    "HS205": {
        "a few small ones": """
            s = f32[128] parameter(0)
            g = f32[1024] all-gather(s), replica_groups=[1,8]<=[8], dimensions={0}
            ROOT h = f32[1024] negate(g)
        """,
    },
    "HS206": {
        "work beside it takes longer": """
HloModule hidden, is_scheduled=true, num_partitions=8
ENTRY main {
  w = bf16[1024,8192] parameter(0)
  x = bf16[65536,8192] parameter(1)
  v = bf16[8192,8192] parameter(2)
  start = (bf16[1024,8192], bf16[8192,8192]) all-gather-start(w), replica_groups=[1,8]<=[8], dimensions={0}
  beside = bf16[65536,8192] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  all = bf16[8192,8192] all-gather-done(start)
  ROOT y = bf16[65536,8192] dot(beside, all), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
        """,
        "a wait that is nothing beside the step": """
HloModule small, is_scheduled=true, num_partitions=8
ENTRY main {
  s = bf16[1024] parameter(0)
  x = bf16[65536,8192] parameter(1)
  v = bf16[8192,8192] parameter(2)
  all = bf16[8192] all-gather(s), replica_groups=[1,8]<=[8], dimensions={0}
  y = bf16[65536,8192] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT both = (bf16[8192], bf16[65536,8192]) tuple(all, y)
}
        """,
        "nobody knows how long the rest takes": """
HloModule unknown, is_scheduled=true, num_partitions=8
body {
  state = (bf16[65536,8192], bf16[8192,8192]) parameter(0)
  x = bf16[65536,8192] get-tuple-element(state), index=0
  v = bf16[8192,8192] get-tuple-element(state), index=1
  y = bf16[65536,8192] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (bf16[65536,8192], bf16[8192,8192]) tuple(y, v)
}
condition {
  state = (bf16[65536,8192], bf16[8192,8192]) parameter(0)
  ROOT more = pred[] constant(true)
}
ENTRY main {
  w = bf16[1024,8192] parameter(0)
  x = bf16[65536,8192] parameter(1)
  all = bf16[8192,8192] all-gather(w), replica_groups=[1,8]<=[8], dimensions={0}
  start = (bf16[65536,8192], bf16[8192,8192]) tuple(x, all)
  ROOT loop = (bf16[65536,8192], bf16[8192,8192]) while(start), condition=condition, body=body
}
        """,
    },
    "HS207": {
        "rows looked up in a gathered table are no slice of it": """
            shard = bf16[512,4096] parameter(0)
            index = s32[64,1] parameter(1)
            all = bf16[4096,4096] all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}
            ROOT rows = bf16[64,4096] gather(all, index), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4096}
        """,
        "halves at fixed places are both used": """
            shard = bf16[512,4096] parameter(0)
            all = bf16[4096,4096] all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}
            left = bf16[4096,2048] slice(all), slice={[0:4096], [0:2048]}
            right = bf16[4096,2048] slice(all), slice={[0:4096], [2048:4096]}
            ROOT both = bf16[4096,2048] add(left, right)
        """,
    },
    "HS208": {
        "what a loop carries over whole is no stack": """
            body {
              state = (s32[], bf16[1,4096,1024], bf16[6,512,1024]) parameter(0)
              i = s32[] get-tuple-element(state), index=0
              ws = bf16[6,512,1024] get-tuple-element(state), index=2
              zero = s32[] constant(0)
              one = s32[] constant(1)
              w = bf16[1,512,1024] dynamic-slice(ws, i, zero, zero), dynamic_slice_sizes={1,512,1024}
              full = bf16[1,4096,1024] all-gather(w), replica_groups=[1,8]<=[8], dimensions={1}
              next = s32[] add(i, one)
              ROOT out = (s32[], bf16[1,4096,1024], bf16[6,512,1024]) tuple(next, full, ws)
            }
            condition {
              state = (s32[], bf16[1,4096,1024], bf16[6,512,1024]) parameter(0)
              i = s32[] get-tuple-element(state), index=0
              six = s32[] constant(6)
              ROOT less = pred[] compare(i, six), direction=LT
            }
            start = (s32[], bf16[1,4096,1024], bf16[6,512,1024]) parameter(0)
            ROOT loop = (s32[], bf16[1,4096,1024], bf16[6,512,1024]) while(start), condition=condition, body=body
        """,
    },
    "HS209": {
        "padding of another dimension": ADD
        + """
            grad = bf16[8192,4000] parameter(0)
            zero = bf16[] constant(0)
            padded = bf16[8192,4096] pad(grad, zero), padding=0_0x0_96
            ROOT rs = bf16[16,4096] reduce-scatter(padded), replica_groups=[1,512]<=[512], dimensions={0}, to_apply=add
        """,
    },
    "HS306": {
        "arithmetic makes it more than a copy": """
            double {
              p = bf16[4096,4096] parameter(0)
              w = f32[4096,4096] convert(p)
              ROOT s = f32[4096,4096] add(w, w)
            }
            x = bf16[4096,4096] parameter(0)
            ROOT y = f32[4096,4096] fusion(x), kind=kLoop, calls=double
        """,
        "a small copy does not matter": """
            x = bf16[128,4096] parameter(0)
            ROOT wide = f32[128,4096] convert(x)
        """,
    },
    "HS301": {
        "a buffer that the loop uses does not only wait": LOOP
        + """
            p = f32[4096,4096] parameter(0)
            i0 = s32[] parameter(1)
            logits = f32[4096,4096] negate(p)
            start = (s32[], f32[4096,4096]) tuple(i0, logits)
            loop = (s32[], f32[4096,4096]) while(start), condition=condition, body=body
            late = f32[4096,4096] exponential(logits)
            ROOT out = ((s32[], f32[4096,4096]), f32[4096,4096]) tuple(loop, late)
        """,
        "a buffer that is read before the loop is gone": LOOP
        + """
            p = f32[4096,4096] parameter(0)
            i0 = s32[] parameter(1)
            logits = f32[4096,4096] negate(p)
            early = f32[4096,4096] exponential(logits)
            start = (s32[], f32[4096,4096]) tuple(i0, early)
            ROOT loop = (s32[], f32[4096,4096]) while(start), condition=condition, body=body
        """,
    },
    "HS302": {
        "a cast is needed anyway": """
            cast {
              p = f32[4096,4096]{1,0} parameter(0)
              c = bf16[4096,4096]{1,0} convert(p)
              ROOT t = bf16[4096,4096]{0,1} copy(c)
            }
            w = f32[4096,4096]{1,0} parameter(0)
            ROOT turned = bf16[4096,4096]{0,1} fusion(w), kind=kLoop, calls=cast
        """,
        "what is computed is no parameter": """
            w = bf16[4096,4096]{1,0} parameter(0)
            x = bf16[4096,4096]{1,0} negate(w)
            turned = bf16[4096,4096]{0,1} copy(x)
            ROOT y = bf16[4096,4096]{0,1} exponential(turned)
        """,
    },
    "HS303": {
        "a loop that replaces its carry without reading it again": LOOP
        + """
            i0 = s32[] parameter(0)
            x = f32[4096,4096] parameter(1)
            start = (s32[], f32[4096,4096]) tuple(i0, x)
            ROOT loop = (s32[], f32[4096,4096]) while(start), condition=condition, body=body
        """,
        "a copy outside of any loop": """
            x = f32[4096,4096] parameter(0)
            y = f32[4096,4096] copy(x)
            ROOT z = f32[4096,4096] negate(y)
        """,
    },
    "HS304": {
        "a donated argument that an output takes over": """
HloModule donated, is_scheduled=true, buffer_donor={ (0, {}) }, input_output_alias={ {}: (0, {}, may-alias) }
ENTRY main {
  old = f32[1024,1024] parameter(0)
  ROOT new = f32[1024,1024] negate(old)
}
        """,
        "a module from before optimization, where nothing is aliased yet": """
HloModule donated, buffer_donor={ (0, {}) }
ENTRY main {
  old = f32[1024,1024] parameter(0)
  ROOT new = f32[1024,1024] negate(old)
}
        """,
    },
    "HS305": {
        "a last dimension that fills lanes": """
            p = f32[262144,128]{1,0:T(8,128)} parameter(0)
            x = f32[262144,128]{1,0:T(8,128)} negate(p)
            ROOT y = f32[262144,128]{1,0:T(8,128)} exponential(x)
        """,
        "padding that is nothing beside the rest": """
            p = f32[262144,128]{1,0:T(8,128)} parameter(0)
            q = f32[8,100]{1,0:T(8,128)} parameter(1)
            x = f32[262144,128]{1,0:T(8,128)} negate(p)
            small = f32[8,100]{1,0:T(8,128)} negate(q)
            ROOT both = (f32[262144,128]{1,0:T(8,128)}, f32[8,100]{1,0:T(8,128)}) tuple(x, small)
        """,
    },
    "HS307": {
        "a kernel that reserves a little": """
            p = bf16[4096,4096] parameter(0)
            near = bf16[4096,4096]{1,0:S(1)} negate(p)
            ROOT y = bf16[4096,4096] custom-call(near), custom_call_target="tpu_custom_call", backend_config={"scoped_memory_configs":[{"memory_space":"1","offset":"0","size":"10000000"}]}
        """,
    },
    "HS308": {
        "many alike": """
            p = f32[1024,1024] parameter(0)
            a = f32[1024,1024] negate(p)
            b = f32[1024,1024] exponential(p)
            c = f32[1024,1024] cosine(p)
            d = f32[1024,1024] sine(p)
            e = f32[1024,1024] tanh(p)
            ROOT all = (f32[1024,1024], f32[1024,1024], f32[1024,1024], f32[1024,1024], f32[1024,1024]) tuple(a, b, c, d, e)
        """,
    },
    "HS401": {
        "one parameter for all experts": """
            w = bf16[2,1024,2048] parameter(0)
            x = bf16[4096,1024] parameter(1)
            sizes = s32[2] parameter(2)
            copy = bf16[2,1024,2048] copy(w)
            ROOT out = bf16[4096,2048] custom-call(sizes, x, copy), custom_call_target="tpu_custom_call"
        """,
        "activations that are joined": """
            a = bf16[2,1024,1024] parameter(0)
            x = bf16[4096,1024] parameter(1)
            sizes = s32[2] parameter(2)
            b = bf16[2,1024,1024] negate(a)
            w = bf16[2,1024,2048] concatenate(a, b), dimensions={2}
            ROOT out = bf16[4096,2048] custom-call(sizes, x, w), custom_call_target="tpu_custom_call"
        """,
    },
    "HS402": {
        "a shape in the region of the kernel": """
            v0 = s32[40] parameter(0)
            v1 = s32[40] parameter(1)
            v2 = s32[40] parameter(2)
            v3 = s32[40] parameter(3)
            v4 = s32[40] parameter(4)
            x = bf16[4096,1024] parameter(5)
            w = bf16[16,1024,2048] parameter(6)
            ROOT ragged_dot.1 = bf16[4096,2048] custom-call(v0, v1, v2, v3, v4, x, w), custom_call_target="tpu_custom_call"
        """,
        "a kernel of another make": """
            v0 = s32[40] parameter(0)
            v1 = s32[40] parameter(1)
            v2 = s32[40] parameter(2)
            v3 = s32[40] parameter(3)
            v4 = s32[40] parameter(4)
            x = bf16[4096,1024] parameter(5)
            w = bf16[8,1024,2048] parameter(6)
            ROOT gmm.1 = bf16[4096,2048] custom-call(v0, v1, v2, v3, v4, x, w), custom_call_target="tpu_custom_call"
        """,
        "another kernel of the same name": """
            v0 = s32[40] parameter(0)
            v1 = s32[40] parameter(1)
            x = bf16[4096,1024] parameter(2)
            w = bf16[8,1024,2048] parameter(3)
            ROOT ragged_dot.1 = bf16[4096,2048] custom-call(v0, v1, x, w), custom_call_target="tpu_custom_call"
        """,
    },
    "HS403": {
        "scores of attention under a causal mask are not repeated": """
            q = bf16[8,1024,128] parameter(0)
            k = bf16[8,1024,128] parameter(1)
            v = bf16[8,1024,128] parameter(2)
            zero = bf16[] constant(0)
            scores = bf16[8,1024,1024] dot(q, k), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}
            row = s32[8,1024,1024] iota(), iota_dimension=1
            column = s32[8,1024,1024] iota(), iota_dimension=2
            seen = pred[8,1024,1024] compare(row, column), direction=GE
            zeros = bf16[8,1024,1024] broadcast(zero), dimensions={}
            masked = bf16[8,1024,1024] select(seen, scores, zeros)
            ROOT out = bf16[8,1024,128] dot(masked, v), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
        """,
        "weights that all heads share are no rows of groups": """
            x = bf16[8,1024,512] parameter(0)
            w = bf16[512,256] parameter(1)
            scale = bf16[8,512,256] parameter(2)
            all = bf16[8,512,256] broadcast(w), dimensions={1,2}
            scaled = bf16[8,512,256] multiply(all, scale)
            ROOT out = bf16[8,1024,256] dot(x, scaled), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
        """,
    },
    "HS501": {
        "sizes that come from outside need no work": """
            sizes = s32[8] parameter(0)
            x = bf16[4096,512] parameter(1)
            w = bf16[8,512,1024] parameter(2)
            ROOT out = bf16[4096,1024] custom-call(sizes, x, w), custom_call_target="tpu_custom_call"
        """,
    },
    "HS502": {
        "two readers": """
            x = bf16[4096,4096] parameter(0)
            a = bf16[4096,4096] exponential(x)
            b = bf16[4096,4096] negate(a)
            c = bf16[4096,4096] sine(a)
            ROOT out = (bf16[4096,4096], bf16[4096,4096]) tuple(b, c)
        """,
        "a matmul reads it": """
            x = bf16[4096,4096] parameter(0)
            a = bf16[4096,4096] exponential(x)
            ROOT b = bf16[4096,4096] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        """,
        "what stays in VMEM costs nothing": """
            x = bf16[4096,4096] parameter(0)
            a = bf16[4096,4096]{1,0:S(1)} exponential(x)
            ROOT b = bf16[4096,4096] negate(a)
        """,
        "before the passes nothing is fused": """
HloModule before
ENTRY main {
  x = bf16[4096,4096] parameter(0)
  a = bf16[4096,4096] exponential(x)
  ROOT b = bf16[4096,4096] negate(a)
}
        """,
    },
    "HS503": {
        "a copy for another operation": """
            p = bf16[4096,4096]{0,1} parameter(0)
            x = bf16[4096,4096]{0,1} negate(p)
            turned = bf16[4096,4096]{1,0} copy(x)
            ROOT y = bf16[4096,4096]{1,0} exponential(turned)
        """,
    },
    "HS504": {
        "attention in the forward pass": """
            q = bf16[8,2048,128] parameter(0)
            k = bf16[8,2048,128] parameter(1)
            v = bf16[8,2048,128] parameter(2)
            ROOT o = bf16[8,2048,128] custom-call(q, k, v), custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/jvp()/attention"}
        """,
        "cheap work may be recomputed": """
            q = bf16[8,2048,128] parameter(0)
            ROOT o = bf16[8,2048,128] tanh(q), metadata={op_name="jit(step)/transpose(jvp())/checkpoint/rematted_computation/tanh"}
        """,
    },
    "HS505": {
        "messages between devices are not for the host": """
            x = f32[1024,1024] parameter(0)
            token = token[] after-all()
            sent = (f32[1024,1024], u32[], token[]) send(x, token), channel_id=1
            ROOT done = token[] send-done(sent), channel_id=1
        """,
        "a copy to VMEM": """
            x = f32[1024,1024] parameter(0)
            near = f32[1024,1024]{1,0:S(1)} copy(x)
            ROOT y = f32[1024,1024] negate(near)
        """,
    },
}
