"""Translation with attention: an LSTM reads, DynamicRNN writes; beam search in a While loop."""
from __future__ import print_function

import argparse
import contextlib
import os

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.framework as framework
import paddle.fluid.layers as pd
from paddle.fluid.executor import Executor

START, END, UNK = 0, 1, 2


def parse_args():
    parser = argparse.ArgumentParser(description="Run seq2seq with attention.")
    parser.add_argument("--embedding_dim", type=int, default=16)
    parser.add_argument("--encoder_size", type=int, default=20)
    parser.add_argument("--decoder_size", type=int, default=24)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--dict_size", type=int, default=14)
    parser.add_argument("--pass_num", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=0.02)
    parser.add_argument("--beam_size", type=int, default=3)
    parser.add_argument("--max_length", type=int, default=10)
    parser.add_argument("--init_model", type=str, default="")
    parser.add_argument("--save_dir", "--model_dir", dest="model_dir", type=str, default="model")
    return parser.parse_args()


def write_pairs(path, dict_size):
    """Lines of `source<TAB>target`; a translation is the source read backwards."""
    rng = np.random.RandomState(4)
    with open(path, "w") as out:
        for _ in range(64):
            source = rng.randint(3, dict_size, rng.randint(2, 6))
            out.write("%s\t%s\n" % (
                " ".join(str(w) for w in source), " ".join(str(w) for w in source[::-1])))


def pair_reader(path):
    def reader():
        with open(path) as f:
            for line in f:
                source, target = [[int(w) for w in side.split()] for side in line.split("\t")]
                yield source + [END], [START] + target, target + [END]

    return reader


def bi_lstm_encoder(input_seq, gate_size):
    # a size of 4 times the state for all gates of an LSTM
    input_forward_proj = pd.fc(
        input=input_seq, size=gate_size * 4, act=None, bias_attr=False)
    forward, _ = pd.dynamic_lstm(
        input=input_forward_proj, size=gate_size * 4, use_peepholes=False)
    input_reversed_proj = pd.fc(
        input=input_seq, size=gate_size * 4, act=None, bias_attr=False)
    reversed, _ = pd.dynamic_lstm(
        input=input_reversed_proj, size=gate_size * 4, is_reverse=True, use_peepholes=False)
    return forward, reversed


def lstm_step(x_t, hidden_t_prev, cell_t_prev, size, name):
    def linear(inputs, gate):
        return pd.fc(
            input=inputs, size=size,
            param_attr=[fluid.ParamAttr(name="%s_%s_w%d" % (name, gate, i)) for i in range(2)],
            bias_attr=fluid.ParamAttr(name="%s_%s_b" % (name, gate)))

    forget_gate = pd.sigmoid(x=linear([hidden_t_prev, x_t], "forget"))
    input_gate = pd.sigmoid(x=linear([hidden_t_prev, x_t], "input"))
    output_gate = pd.sigmoid(x=linear([hidden_t_prev, x_t], "output"))
    cell_tilde = pd.tanh(x=linear([hidden_t_prev, x_t], "cell"))
    cell_t = pd.sums(input=[
        pd.elementwise_mul(x=forget_gate, y=cell_t_prev),
        pd.elementwise_mul(x=input_gate, y=cell_tilde)])
    hidden_t = pd.elementwise_mul(x=output_gate, y=pd.tanh(x=cell_t))
    return hidden_t, cell_t


def simple_attention(encoder_vec, encoder_proj, decoder_state, decoder_size):
    decoder_state_proj = pd.fc(
        input=decoder_state, size=decoder_size, bias_attr=False,
        param_attr=fluid.ParamAttr(name="attention_state_w"))
    decoder_state_expand = pd.sequence_expand(x=decoder_state_proj, y=encoder_proj)
    mixed_state = pd.elementwise_add(encoder_proj, decoder_state_expand)
    attention_weights = pd.fc(
        input=pd.tanh(mixed_state), size=1, bias_attr=False,
        param_attr=fluid.ParamAttr(name="attention_weight_w"))
    attention_weights = pd.sequence_softmax(input=attention_weights)
    weigths_reshape = pd.reshape(x=attention_weights, shape=[-1])
    scaled = pd.elementwise_mul(x=encoder_vec, y=weigths_reshape, axis=0)
    return pd.sequence_pool(input=scaled, pool_type="sum")


class Seq2Seq(object):
    def __init__(self, args):
        self.args = args

    def embedding(self, ids, name):
        return pd.embedding(
            input=ids, size=[self.args.dict_size, self.args.embedding_dim], dtype="float32",
            is_sparse=True, param_attr=fluid.ParamAttr(name=name))

    def encoder(self):
        src_word_idx = pd.data(name="source_sequence", shape=[1], dtype="int64", lod_level=1)
        src_embedding = self.embedding(src_word_idx, "source_emb")
        src_forward, src_reversed = bi_lstm_encoder(src_embedding, self.args.encoder_size)
        encoded_vector = pd.concat(input=[src_forward, src_reversed], axis=1)
        encoded_proj = pd.fc(
            input=encoded_vector, size=self.args.decoder_size, bias_attr=False)
        backward_first = pd.sequence_pool(input=src_reversed, pool_type="first")
        decoder_boot = pd.fc(
            input=backward_first, size=self.args.decoder_size, bias_attr=False, act="tanh")
        return encoded_vector, encoded_proj, decoder_boot

    def step(self, word, encoder_vec, encoder_proj, hidden, cell):
        context = simple_attention(encoder_vec, encoder_proj, hidden, self.args.decoder_size)
        decoder_inputs = pd.concat(input=[context, word], axis=1)
        h, c = lstm_step(decoder_inputs, hidden, cell, self.args.decoder_size, "decoder")
        out = pd.fc(
            input=h, size=self.args.dict_size, act="softmax",
            param_attr=fluid.ParamAttr(name="out_w"), bias_attr=fluid.ParamAttr(name="out_b"))
        return h, c, out

    def train_net(self):
        encoder_vec, encoder_proj, decoder_boot = self.encoder()
        trg_word_idx = pd.data(name="target_sequence", shape=[1], dtype="int64", lod_level=1)
        trg_embedding = self.embedding(trg_word_idx, "target_emb")
        rnn = pd.DynamicRNN()
        cell_init = pd.fill_constant_batch_size_like(
            input=decoder_boot, value=0.0, shape=[-1, self.args.decoder_size], dtype="float32")
        cell_init.stop_gradient = False
        with rnn.block():
            current_word = rnn.step_input(trg_embedding)
            vec = rnn.static_input(encoder_vec)
            proj = rnn.static_input(encoder_proj)
            hidden_mem = rnn.memory(init=decoder_boot, need_reorder=True)
            cell_mem = rnn.memory(init=cell_init)
            h, c, out = self.step(current_word, vec, proj, hidden_mem, cell_mem)
            rnn.update_memory(hidden_mem, h)
            rnn.update_memory(cell_mem, c)
            rnn.output(out)
        prediction = rnn()
        label = pd.data(name="label_sequence", shape=[1], dtype="int64", lod_level=1)
        cost = pd.cross_entropy(input=prediction, label=label)
        return pd.mean(x=cost)

    def infer_net(self):
        beam_size, max_length = self.args.beam_size, self.args.max_length
        encoder_vec, encoder_proj, decoder_boot = self.encoder()
        cell_init = pd.fill_constant_batch_size_like(
            input=decoder_boot, value=0.0, shape=[-1, self.args.decoder_size], dtype="float32")

        array_len = pd.fill_constant(shape=[1], dtype="int64", value=max_length)
        counter = pd.zeros(shape=[1], dtype="int64", force_cpu=True)
        hidden_array, cell_array = pd.create_array("float32"), pd.create_array("float32")
        pd.array_write(decoder_boot, array=hidden_array, i=counter)
        pd.array_write(cell_init, array=cell_array, i=counter)
        vec_array, proj_array = pd.create_array("float32"), pd.create_array("float32")
        pd.array_write(encoder_vec, array=vec_array, i=counter)
        pd.array_write(encoder_proj, array=proj_array, i=counter)
        ids_array, scores_array = pd.create_array("int64"), pd.create_array("float32")
        init_ids = pd.data(name="init_ids", shape=[1], dtype="int64", lod_level=2)
        init_scores = pd.data(name="init_scores", shape=[1], dtype="float32", lod_level=2)
        pd.array_write(init_ids, array=ids_array, i=counter)
        pd.array_write(init_scores, array=scores_array, i=counter)

        cond = pd.less_than(x=counter, y=array_len)
        while_op = pd.While(cond=cond)
        with while_op.block():
            pre_ids = pd.array_read(array=ids_array, i=counter)
            pre_score = pd.array_read(array=scores_array, i=counter)
            pre_hidden = pd.array_read(array=hidden_array, i=counter)
            pre_cell = pd.array_read(array=cell_array, i=counter)
            hidden_expanded = pd.sequence_expand(pre_hidden, pre_score)
            cell_expanded = pd.sequence_expand(pre_cell, pre_score)
            vec_expanded = pd.sequence_expand(pd.array_read(vec_array, counter), pre_score)
            proj_expanded = pd.sequence_expand(pd.array_read(proj_array, counter), pre_score)
            word = pd.reshape(
                self.embedding(pre_ids, "target_emb"), shape=[-1, self.args.embedding_dim])
            h, c, out = self.step(
                word, vec_expanded, proj_expanded, hidden_expanded, cell_expanded)
            current_score = pd.lod_reset(x=out, y=pre_score)
            topk_scores, topk_indices = pd.topk(current_score, k=beam_size)
            accu_scores = pd.elementwise_add(
                x=pd.log(topk_scores), y=pd.reshape(pre_score, shape=[-1]), axis=0)
            selected_ids, selected_scores = pd.beam_search(
                pre_ids, pre_score, topk_indices, accu_scores, beam_size, end_id=END, level=0)
            pd.increment(x=counter, value=1, in_place=True)
            pd.array_write(h, array=hidden_array, i=counter)
            pd.array_write(c, array=cell_array, i=counter)
            pd.array_write(vec_expanded, array=vec_array, i=counter)
            pd.array_write(proj_expanded, array=proj_array, i=counter)
            pd.array_write(selected_ids, array=ids_array, i=counter)
            pd.array_write(selected_scores, array=scores_array, i=counter)
            length_cond = pd.less_than(x=counter, y=array_len)
            finish_cond = pd.logical_not(pd.is_empty(x=selected_ids))
            pd.logical_and(x=length_cond, y=finish_cond, out=cond)
        return pd.beam_search_decode(
            ids=ids_array, scores=scores_array, beam_size=beam_size, end_id=END)


@contextlib.contextmanager
def programs():
    main, startup = framework.Program(), framework.Program()
    with framework.program_guard(main, startup):
        with fluid.unique_name.guard():
            yield main, startup


def train(args):
    with programs() as (main, startup):
        avg_cost = Seq2Seq(args).train_net()
        optimizer = fluid.optimizer.Adam(
            learning_rate=args.learning_rate,
            regularization=fluid.regularizer.L2DecayRegularizer(regularization_coeff=1e-4))
        optimizer.minimize(avg_cost)
        place = fluid.CPUPlace()
        exe = Executor(place)
        startup.random_seed = 90
        exe.run(startup)
        if args.init_model:
            fluid.io.load_persistables(exe, args.init_model, main)
        feed_list = [main.global_block().var(name) for name in
                     ["source_sequence", "target_sequence", "label_sequence"]]
        feeder = fluid.DataFeeder(feed_list, place)
        reader = paddle.batch(pair_reader("pairs.txt"), batch_size=args.batch_size)
        for pass_id in range(args.pass_num):
            for batch_id, data in enumerate(reader()):
                outs = exe.run(main, feed=feeder.feed(data), fetch_list=[avg_cost])
                print("pass_id=%d, batch=%d, avg_cost %f" % (
                    pass_id, batch_id, np.array(outs[0])[0]))
        fluid.io.save_persistables(exe, args.model_dir, main)


def infer(args):
    with programs() as (main, startup):
        translation_ids, translation_scores = Seq2Seq(args).infer_net()
        place = fluid.CPUPlace()
        exe = Executor(place)
        exe.run(startup)

        def predicate(var):
            return (isinstance(var, fluid.framework.Parameter) and
                    os.path.exists(os.path.join(args.model_dir, var.name)))

        fluid.io.load_vars(exe, args.model_dir, main, predicate=predicate)
        for batch_id, data in enumerate(paddle.batch(pair_reader("pairs.txt"), batch_size=4)()):
            count = len(data)
            lod = [[1] * count, [1] * count]
            ids = fluid.create_lod_tensor(np.zeros((count, 1), dtype="int64"), lod, place)
            scores = fluid.create_lod_tensor(np.zeros((count, 1), dtype="float32"), lod, place)
            source = fluid.create_lod_tensor(
                np.concatenate([row[0] for row in data]).reshape(-1, 1).astype("int64"),
                [[len(row[0]) for row in data]], place)
            feed = {"source_sequence": source, "init_ids": ids, "init_scores": scores}
            result_ids, result_scores = exe.run(
                main, feed=feed, fetch_list=[translation_ids, translation_scores],
                return_numpy=False)
            lod_level_1 = result_ids.lod()[1]
            token_array = np.array(result_ids).reshape(-1)
            score_array = np.array(result_scores).reshape(-1)
            for i in range(count):
                first = result_ids.lod()[0][i]
                tokens = token_array[lod_level_1[first]:lod_level_1[first + 1]]
                print("source", data[i][0], "beams",
                      result_ids.lod()[0][i + 1] - first, "best",
                      " ".join(str(t) for t in tokens),
                      "cost %.3f" % score_array[lod_level_1[first + 1] - 1])
            if batch_id == 1:
                break


if __name__ == "__main__":
    arguments = parse_args()
    write_pairs("pairs.txt", arguments.dict_size)
    train(arguments)
    if arguments.pass_num:
        infer(arguments)
