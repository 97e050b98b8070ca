"""The operations with Triton kernels, which the modules of `kernels/` call for tensors on a GPU."""

from bertwright.kernels.triton.adamw_kernels import adamw_ as adamw_
from bertwright.kernels.triton.adamw_kernels import gradient_norm as gradient_norm
from bertwright.kernels.triton.cuda_graphs import FusedEncoder as FusedEncoder
from bertwright.kernels.triton.dropout_masks import store as store
from bertwright.kernels.triton.embed_norm import DropoutFunction as DropoutFunction
from bertwright.kernels.triton.embed_norm import EmbedNorm as EmbedNorm
from bertwright.kernels.triton.flash import MAX_HEAD_SIZE as MAX_HEAD_SIZE
from bertwright.kernels.triton.flash import Attention as Attention
from bertwright.kernels.triton.gelu import BiasGelu as BiasGelu
from bertwright.kernels.triton.gelu import column_sum as column_sum
from bertwright.kernels.triton.layer_norm import AddDropoutNorm as AddDropoutNorm
from bertwright.kernels.triton.softmax_loss import cross_entropy_ as cross_entropy_
