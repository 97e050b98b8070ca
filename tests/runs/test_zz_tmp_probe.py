import sys; sys.path.insert(0,'/work/main/tests/runs')
from test_probing import make, bert
import test_probing as t, pytest
from pathlib import Path
def test_x(make):
    import time
    for ep,lr,ls in ((3,1e-2,16),(5,1e-2,16),(3,2e-2,16),(3,3e-2,16),(3,3e-2,24)):
        import shutil; shutil.rmtree(make().run, ignore_errors=True)
        c=time.process_time()
        rows,p=t.carried_out(make(representations=tuple(t.REPRESENTATIONS),seeds=(0,1),epochs=ep,learning_rates=(lr,),lstm_size=ls))
        print(ep,lr,ls,time.process_time()-c,[str(r.dev) for r in rows])
