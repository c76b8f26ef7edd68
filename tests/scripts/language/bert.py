"""BERT pretraining: masked words and next sentences, from gzipped text, by py_reader."""
from __future__ import print_function

import argparse
import gzip
import os
from functools import partial

import numpy as np
import paddle
import paddle.fluid as fluid

PAD, CLS, SEP, MASK = 0, 1, 2, 3


def parse_args():
    parser = argparse.ArgumentParser(__doc__)
    parser.add_argument("--data_dir", type=str, default="data")
    parser.add_argument("--max_seq_len", type=int, default=16)
    parser.add_argument("--vocab_size", type=int, default=40)
    parser.add_argument("--hidden_size", type=int, default=32)
    parser.add_argument("--num_hidden_layers", type=int, default=2)
    parser.add_argument("--num_attention_heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--epoch", type=int, default=5)
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--warmup_steps", type=int, default=5)
    parser.add_argument("--num_train_steps", type=int, default=60)
    parser.add_argument("--loss_scaling", type=float, default=1.0)
    parser.add_argument("--init_checkpoint", "--init_model", dest="init_checkpoint", default=None)
    parser.add_argument("--checkpoints", "--model_dir", dest="checkpoints", default="checkpoints")
    return parser.parse_args()


def write_corpus(args):
    """A line: token ids; sentence ids; positions; labels of segments; next sentence label."""
    rng = np.random.RandomState(13)
    if not os.path.isdir(args.data_dir):
        os.makedirs(args.data_dir)
    path = os.path.join(args.data_dir, "demo_wiki_train.gz")
    with gzip.open(path, "wb") as out:
        for _ in range(64):
            begin, follows = rng.randint(4, 20), rng.randint(2)
            first = [begin + i for i in range(rng.randint(3, 6))]
            start = first[-1] + 1 if follows else rng.randint(25, 34)
            second = [start + i for i in range(rng.randint(3, 6))]
            tokens = [CLS] + first + [SEP] + second + [SEP]
            sentences = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            fields = [tokens, sentences, list(range(len(tokens)))]
            text = ";".join(" ".join(str(i) for i in field) for field in fields)
            out.write((text + ";%d\n" % follows).encode("utf8"))
    return path


def mask_batch(batch, args, rng):
    """Pad a batch and mask some words of it; gives positions and labels of what is masked."""
    max_len = max(len(row[0]) for row in batch)
    mask_pos, mask_label = [], []
    src = np.full((len(batch), max_len), PAD, dtype="int64")
    sent, pos = np.zeros_like(src), np.zeros_like(src)
    input_mask = np.zeros((len(batch), max_len, 1), dtype="float32")
    for i, (tokens, sentences, positions, _) in enumerate(batch):
        tokens = list(tokens)
        count = 0
        for j, token in enumerate(tokens):
            if token in (CLS, SEP):
                continue
            if rng.rand() < 0.15 or (count == 0 and j == len(tokens) - 2):
                count += 1
                mask_label.append(token)
                mask_pos.append(i * max_len + j)
                tokens[j] = MASK if rng.rand() < 0.8 else rng.randint(4, args.vocab_size)
        src[i, :len(tokens)] = tokens
        sent[i, :len(tokens)] = sentences
        pos[i, :len(tokens)] = positions
        input_mask[i, :len(tokens)] = 1.0
    labels = np.array([row[3] for row in batch], dtype="int64").reshape(-1, 1)
    return [src[..., np.newaxis], pos[..., np.newaxis], sent[..., np.newaxis], input_mask,
            np.array(mask_label, dtype="int64").reshape(-1, 1),
            np.array(mask_pos, dtype="int64").reshape(-1, 1), labels]


def data_generator(path, args):
    def reader():
        rng = np.random.RandomState(5)
        for _ in range(args.epoch):
            batch = []
            with gzip.open(path, "rb") as f:
                for line in f:
                    fields = line.decode("utf8").strip().split(";")
                    rows = [[int(i) for i in field.split()] for field in fields[:3]]
                    batch.append(rows + [int(fields[3])])
                    if len(batch) == args.batch_size:
                        yield mask_batch(batch, args, rng)
                        batch = []

    return reader


def multi_head_attention(queries, attn_bias, d_model, n_head, dropout_rate, init, name):
    d_key = d_model // n_head

    def project(x, which):
        return fluid.layers.fc(
            input=x, size=d_model, num_flatten_dims=2,
            param_attr=fluid.ParamAttr(name=name + "_%s_fc.w_0" % which, initializer=init),
            bias_attr=name + "_%s_fc.b_0" % which)

    def split_heads(x):
        reshaped = fluid.layers.reshape(x=x, shape=[0, 0, n_head, d_key], inplace=True)
        return fluid.layers.transpose(x=reshaped, perm=[0, 2, 1, 3])

    q, k, v = [split_heads(project(queries, w)) for w in ("query", "key", "value")]
    scaled_q = fluid.layers.scale(x=q, scale=d_key**-0.5)
    product = fluid.layers.matmul(x=scaled_q, y=k, transpose_y=True)
    product += attn_bias
    weights = fluid.layers.softmax(product)
    if dropout_rate:
        weights = fluid.layers.dropout(
            weights, dropout_prob=dropout_rate, dropout_implementation="upscale_in_train",
            is_test=False)
    out = fluid.layers.transpose(fluid.layers.matmul(weights, v), perm=[0, 2, 1, 3])
    out = fluid.layers.reshape(x=out, shape=[0, 0, d_model], inplace=True)
    return project(out, "output")


def pre_post_process_layer(prev_out, out, process_cmd, dropout_rate=0.0, name=""):
    for cmd in process_cmd:
        if cmd == "a":
            out = out + prev_out if prev_out else out
        elif cmd == "n":
            out = fluid.layers.layer_norm(
                out, begin_norm_axis=len(out.shape) - 1,
                param_attr=fluid.ParamAttr(
                    name=name + "_layer_norm_scale",
                    initializer=fluid.initializer.Constant(1.0)),
                bias_attr=fluid.ParamAttr(
                    name=name + "_layer_norm_bias",
                    initializer=fluid.initializer.Constant(0.0)))
        elif cmd == "d" and dropout_rate:
            out = fluid.layers.dropout(
                out, dropout_prob=dropout_rate, dropout_implementation="upscale_in_train",
                is_test=False)
    return out


pre_process_layer = partial(pre_post_process_layer, None)
post_process_layer = pre_post_process_layer


class BertModel(object):
    def __init__(self, src_ids, position_ids, sentence_ids, input_mask, args):
        self.args = args
        self.size = args.hidden_size
        self.init = fluid.initializer.TruncatedNormal(scale=0.05)
        self.build(src_ids, position_ids, sentence_ids, input_mask)

    def embed(self, ids, rows, name):
        return fluid.layers.embedding(
            input=ids, size=[rows, self.size], dtype="float32", is_sparse=False,
            param_attr=fluid.ParamAttr(name=name, initializer=self.init))

    def build(self, src_ids, position_ids, sentence_ids, input_mask):
        emb_out = self.embed(src_ids, self.args.vocab_size, "word_embedding")
        emb_out = emb_out + self.embed(position_ids, self.args.max_seq_len, "pos_embedding")
        emb_out = emb_out + self.embed(sentence_ids, 2, "sent_embedding")
        out = pre_process_layer(emb_out, "nd", self.args.dropout, name="pre_encoder")
        self_attn_mask = fluid.layers.matmul(x=input_mask, y=input_mask, transpose_y=True)
        self_attn_mask = fluid.layers.scale(
            x=self_attn_mask, scale=10000.0, bias=-1.0, bias_after_scale=False)
        heads = self.args.num_attention_heads
        n_head_mask = fluid.layers.stack(x=[self_attn_mask] * heads, axis=1)
        n_head_mask.stop_gradient = True
        for i in range(self.args.num_hidden_layers):
            out = self.encoder_layer(out, n_head_mask, "encoder_layer_" + str(i))
        self.enc_out = out

    def encoder_layer(self, enc_input, attn_bias, name):
        attn = multi_head_attention(
            enc_input, attn_bias, self.size, self.args.num_attention_heads, self.args.dropout,
            self.init, name + "_multi_head_att")
        attn = post_process_layer(
            enc_input, attn, "dan", self.args.dropout, name=name + "_post_att")
        hidden = fluid.layers.fc(
            input=attn, size=self.size * 4, num_flatten_dims=2, act="gelu",
            param_attr=fluid.ParamAttr(name=name + "_ffn_fc_0.w_0", initializer=self.init),
            bias_attr=name + "_ffn_fc_0.b_0")
        ffd = fluid.layers.fc(
            input=hidden, size=self.size, num_flatten_dims=2,
            param_attr=fluid.ParamAttr(name=name + "_ffn_fc_1.w_0", initializer=self.init),
            bias_attr=name + "_ffn_fc_1.b_0")
        return post_process_layer(attn, ffd, "dan", self.args.dropout, name=name + "_post_ffn")

    def get_pretraining_output(self, mask_label, mask_pos, labels):
        mask_pos = fluid.layers.cast(x=mask_pos, dtype="int32")
        first = fluid.layers.slice(input=self.enc_out, axes=[1], starts=[0], ends=[1])
        next_sent_feat = fluid.layers.fc(
            input=first, size=self.size, act="tanh",
            param_attr=fluid.ParamAttr(name="pooled_fc.w_0", initializer=self.init),
            bias_attr="pooled_fc.b_0")
        flat = fluid.layers.reshape(x=self.enc_out, shape=[-1, self.size])
        mask_feat = fluid.layers.gather(input=flat, index=mask_pos)
        mask_trans = fluid.layers.fc(
            input=mask_feat, size=self.size, act="gelu",
            param_attr=fluid.ParamAttr(name="mask_lm_trans_fc.w_0", initializer=self.init),
            bias_attr=fluid.ParamAttr(name="mask_lm_trans_fc.b_0"))
        mask_trans = pre_process_layer(mask_trans, "n", name="mask_lm_trans")
        word_table = fluid.default_main_program().global_block().var("word_embedding")
        fc_out = fluid.layers.matmul(x=mask_trans, y=word_table, transpose_y=True)
        fc_out += fluid.layers.create_parameter(
            shape=[self.args.vocab_size], dtype="float32", is_bias=True,
            attr=fluid.ParamAttr(
                name="mask_lm_out_fc.b_0", initializer=fluid.initializer.Constant(value=0.0)))
        mask_lm_loss = fluid.layers.softmax_with_cross_entropy(logits=fc_out, label=mask_label)
        mean_mask_lm_loss = fluid.layers.mean(mask_lm_loss)
        next_sent_fc_out = fluid.layers.fc(
            input=next_sent_feat, size=2,
            param_attr=fluid.ParamAttr(name="next_sent_fc.w_0", initializer=self.init),
            bias_attr="next_sent_fc.b_0")
        next_sent_loss, next_sent_softmax = fluid.layers.softmax_with_cross_entropy(
            logits=next_sent_fc_out, label=labels, return_softmax=True)
        next_sent_acc = fluid.layers.accuracy(input=next_sent_softmax, label=labels)
        loss = mean_mask_lm_loss + fluid.layers.mean(next_sent_loss)
        return next_sent_acc, mean_mask_lm_loss, loss


def linear_warmup_decay(learning_rate, warmup_steps, num_train_steps):
    with fluid.default_main_program()._lr_schedule_guard():
        lr = fluid.layers.tensor.create_global_var(
            shape=[1], value=0.0, dtype="float32", persistable=True,
            name="scheduled_learning_rate")
        global_step = fluid.layers.learning_rate_scheduler._decay_step_counter()
        with fluid.layers.control_flow.Switch() as switch:
            with switch.case(global_step < warmup_steps):
                warmup_lr = learning_rate * (global_step / warmup_steps)
                fluid.layers.tensor.assign(warmup_lr, lr)
            with switch.default():
                decayed_lr = fluid.layers.learning_rate_scheduler.polynomial_decay(
                    learning_rate=learning_rate, decay_steps=num_train_steps,
                    end_learning_rate=0.0, power=1.0, cycle=False)
                fluid.layers.tensor.assign(decayed_lr, lr)
        return lr


def optimization(loss, args, train_program):
    scheduled_lr = linear_warmup_decay(
        args.learning_rate, args.warmup_steps, args.num_train_steps)
    optimizer = fluid.optimizer.Adam(learning_rate=scheduled_lr)
    fluid.clip.set_gradient_clip(clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=1.0))

    def exclude_from_weight_decay(name):
        return name.find("layer_norm") > -1 or name.endswith(("_bias", "_b", ".b_0"))

    param_list = dict()
    for param in train_program.global_block().all_parameters():
        param_list[param.name] = param * 1.0
        param_list[param.name].stop_gradient = True
    _, param_grads = optimizer.minimize(loss)
    if args.weight_decay > 0:
        for param, grad in param_grads:
            if exclude_from_weight_decay(param.name):
                continue
            with param.block.program._optimized_guard([param, grad]), \
                    fluid.framework.name_scope("weight_decay"):
                updated_param = param - param_list[param.name] * args.weight_decay * scheduled_lr
                fluid.layers.assign(output=param, input=updated_param)
    return scheduled_lr


def train(args):
    path = write_corpus(args)
    train_program, startup_prog = fluid.Program(), fluid.Program()
    with fluid.program_guard(train_program, startup_prog):
        with fluid.unique_name.guard():
            py_reader = fluid.layers.py_reader(
                capacity=70,
                shapes=[[-1, args.max_seq_len, 1]] * 4 + [[-1, 1]] * 3,
                dtypes=["int64", "int64", "int64", "float32", "int64", "int64", "int64"],
                lod_levels=[0] * 7, name="train_reader", use_double_buffer=True)
            (src_ids, pos_ids, sent_ids, input_mask, mask_label, mask_pos,
             labels) = fluid.layers.read_file(py_reader)
            bert = BertModel(src_ids, pos_ids, sent_ids, input_mask, args)
            next_sent_acc, mask_lm_loss, total_loss = bert.get_pretraining_output(
                mask_label, mask_pos, labels)
            scheduled_lr = optimization(total_loss, args, train_program)
            fluid.memory_optimize(
                input_program=train_program,
                skip_opt_set=[next_sent_acc.name, mask_lm_loss.name, total_loss.name])

    exe = fluid.Executor(fluid.CPUPlace())
    startup_prog.random_seed = 90
    exe.run(startup_prog)
    if args.init_checkpoint:
        def existed_persitables(var):
            if not fluid.io.is_persistable(var):
                return False
            return os.path.exists(os.path.join(args.init_checkpoint, var.name))

        fluid.io.load_vars(
            exe, args.init_checkpoint, main_program=train_program,
            predicate=existed_persitables)
        print("Load model from {}".format(args.init_checkpoint))

    exec_strategy = fluid.ExecutionStrategy()
    exec_strategy.num_threads = 1
    exec_strategy.num_iteration_per_drop_scope = 10
    build_strategy = fluid.BuildStrategy()
    build_strategy.remove_unnecessary_lock = False
    os.environ["CPU_NUM"] = "1"
    train_exe = fluid.ParallelExecutor(
        use_cuda=False, loss_name=total_loss.name, exec_strategy=exec_strategy,
        build_strategy=build_strategy, main_program=train_program)

    py_reader.decorate_tensor_provider(data_generator(path, args))
    py_reader.start()
    steps, cost, lm_cost, acc = 0, [], [], []
    while True:
        try:
            steps += 1
            each_next_acc, each_mask_lm_cost, each_total_cost, np_lr = train_exe.run(
                fetch_list=[next_sent_acc.name, mask_lm_loss.name, total_loss.name,
                            scheduled_lr.name])
            acc.extend(each_next_acc)
            lm_cost.extend(each_mask_lm_cost)
            cost.extend(each_total_cost)
            if steps % 4 == 0:
                print("current learning_rate:%f" % np_lr[0])
                print("step: %d, loss: %f, ppl: %f, next_sent_acc: %f" % (
                    steps, np.mean(np.array(cost)), np.mean(np.exp(np.array(lm_cost))),
                    np.mean(np.array(acc))))
                cost, lm_cost, acc = [], [], []
        except fluid.core.EOFException:
            py_reader.reset()
            break
    fluid.io.save_persistables(exe, args.checkpoints, train_program)


if __name__ == "__main__":
    train(parse_args())
