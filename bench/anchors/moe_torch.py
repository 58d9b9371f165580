"""Times torch._grouped_mm at the shapes of bench/grouped_linear.cu, by the same protocol: 192 MB are written before each
sample, CUDA events, median of 11. Usage: moe_torch.py [experts]. Needs torch 2.11 or later and a Hopper GPU."""
import torch, sys
E=int(sys.argv[1]) if len(sys.argv)>1 else 64
flush=torch.empty(192<<20,dtype=torch.uint8,device='cuda')
def med(f,n=11):
    f(); ts=[]
    for i in range(n):
        a=torch.cuda.Event(enable_timing=True); b=torch.cuda.Event(enable_timing=True)
        flush.fill_(i); a.record(); f(); b.record(); b.synchronize(); ts.append(a.elapsed_time(b))
    return sorted(ts)[n//2]
for name,K,N in (('up7168x4096',7168,4096),('dn2048x7168',2048,7168),('up2304x2048',2304,2048),('dn1024x2304',1024,2304)):
    w=torch.randn(E,N,K,device='cuda',dtype=torch.bfloat16)*K**-.5
    for t in (16,64,128,256,1024):
        x=torch.randn(E*t,K,device='cuda',dtype=torch.bfloat16); dy=torch.randn(E*t,N,device='cuda',dtype=torch.bfloat16)
        off=torch.arange(1,E+1,device='cuda',dtype=torch.int32)*t
        f=med(lambda: torch._grouped_mm(x,w.transpose(-2,-1),offs=off))
        d=med(lambda: torch._grouped_mm(dy,w,offs=off))
        print(f'torch {name} E{E} t{t} fwd {f:.4f} dX {d:.4f}',flush=True)
