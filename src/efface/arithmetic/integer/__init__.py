"""Networks of convolutions, BatchNorm and (Leaky)ReLU on 8-bit integers: the same bits on every machine.

Every sum (a convolution, a mean, a projection) is one of integers below 2^24, which float32 adds exactly in
any order; every other operation works on single numbers and is rounded once, as IEEE 754 has it. So neither
the processor, nor the number of threads, nor the batch can change a bit.
"""
