function n(e){return`from treadle import App

app = App(${JSON.stringify(e)})


@app.task
async def hello(name: str) -> str:
    return f"hello {name}"


async def main() -> None:
    async with app:
        await hello.enqueue("Ada")`}export{n as a};
